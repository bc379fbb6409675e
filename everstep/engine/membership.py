"""This worker's place in the job: notice that a generation closed, arrive for the next, have its group formed.

Two threads do it in the background, so that regrouping proceeds while a micro-batch is still being computed: the
watcher holds a long-poll at the coordinator (also the heartbeat, unless an agent vouches for this worker) and breaks
the group of a closed generation; the regrouper arrives for the next one and forms its group in a thread that can be
abandoned. The script's thread takes the new group when it comes to a point where it may: `next_group`.

The coordinator decides what is closed; an exception here is only a reason to ask."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import re
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import torch.distributed as dist

from everstep import env
from everstep.addresses import address_towards, listen
from everstep.engine import background, incarnation
from everstep.engine.group import Group, GroupForming, check_size, gloo_words
from everstep.engine.probing import ProbeListener, reachable
from everstep.engine.tcp_store import serve_store
from everstep.engine.world import World
from everstep.errors import EverstepError, JobFinished, JobStopped, PermanentError
from everstep.events import emit
from everstep.ipc.progress_page import ProgressPage
from everstep.retry import patiently
from everstep.wire import (
    Announce,
    Announced,
    Arrive,
    Arrived,
    Broken,
    GenerationView,
    Leave,
    Settled,
    Watch,
    Watched,
)

if TYPE_CHECKING:
    from everstep.client.calls import Coordinator  # httpx: not needed by a worker that is alone

log = logging.getLogger("everstep")

T = TypeVar("T")
M = TypeVar("M", Watch, Arrive)

_STORE_S = 30.0
_REPORTED_AFTER_S = 1.5  # a longer wait is reported, with its reason
HELD_S = 30.0  # a call may be held at most this long …
HELD_PART = 0.05  # … and at most this part of the deadline by which a cut-off worker stops, counted from its last call


class Membership:
    """Membership by a coordinator. Thread-safe; `on_closed` is called in a background thread, once per generation."""

    def __init__(
        self, client: Coordinator, url: str, worker: str, board: ProgressPage, on_closed: Callable[[int], None]
    ) -> None:
        self.worker = worker
        self.newcomers = 0
        self.is_newcomer = False
        self.is_in_step = False
        self._client = client
        self._board = board
        self._on_closed = on_closed
        self._incarnation = incarnation.announce()
        self._address = env.value(env.ADDRESS) or address_towards(url)
        self._stop = threading.Event()
        self._deadline_s = env.coordinator_deadline_s()
        self._changed = threading.Condition()
        self._failure: EverstepError | JobFinished | None = None
        # What the threads share, under _changed:
        self._generation = 0
        self._is_closed = False
        self._must_probe = False
        self._must_arrive = False
        self._is_leaving = False  # a closing is then no reason to arrive: the coordinator says whether it is needed
        self._arrival = (0, 0, None)  # type: tuple[int, int, int | None]
        self._group: Group | None = None  # of _generation, once it is formed
        self._store_socket = listen(self._address)
        self._store: dist.TCPStore | None = None
        self._probes = ProbeListener(self._address)
        self._threads: list[threading.Thread] = []

    # --- called by the engine ---------------------------------------------------------------------------

    def announce(self) -> None:
        """Announce this process to the coordinator; heartbeats begin."""
        port = self._store_socket.getsockname()[1]
        self._store = serve_store(self._store_socket, _STORE_S)
        self._hello = Announce(
            incarnation=self._incarnation,
            pid=os.getpid(),
            address=self._address,
            store_port=port,
            probe_port=self._probes.port,
        )
        reply = self._announce()
        self.is_newcomer = reply.is_newcomer
        # The coordinator lets others continue without us after fence_s: by then we must have stopped.
        self._deadline_s = min(self._deadline_s, reply.policy.fence_s)
        self._held_s = min(HELD_S, HELD_PART * self._deadline_s)
        for target in (self._watch, self._regroup):
            name = f"everstep-{target.__name__.strip('_')}"
            thread = threading.Thread(target=self._guarded, args=(target,), name=name, daemon=True)
            thread.start()
            self._threads.append(thread)

    def _announce(self) -> Announced:
        return self._ask(lambda: self._client.announce(self.worker, self._hello))

    def others_step(self) -> int:
        """How many steps the members have committed, as far as the coordinator knows."""
        return self._announce().step

    def others_state_bytes(self) -> int:
        """The size of the state that the members hold, as far as the coordinator knows."""
        return self._announce().state_bytes

    def arrive(self, generation: int) -> None:
        """Stand ready for the generation after this one, in good order. No effect if that one exists already."""
        with self._changed:
            if self._generation == generation:
                self._must_arrive = True
                self._changed.notify_all()

    def hold(self, settled: int, step: int, max_workers: int | None) -> None:
        """What to say of this worker when it arrives."""
        with self._changed:
            self._arrival = (settled, step, max_workers)

    def is_closed(self, generation: int) -> bool:
        """Also raises what ended this worker's membership."""
        with self._changed:
            self._raise_failure()
            return self._generation != generation or self._is_closed

    def next_group(self, after: int) -> Group:
        """Wait for the group of a generation newer than `after`."""
        with self._changed:
            while True:
                self._raise_failure()
                if self._group is not None and self._generation > after and not self._is_closed:
                    return self._group
                self._changed.wait()

    def report_broken(self, generation: int, reason: str, *, must_probe: bool = False) -> None:
        """A collective failed. This closes the generation, unless it is closed already."""
        with self._changed:
            if self._generation != generation or self._is_closed:
                return
        message = Broken(incarnation=self._incarnation, generation=generation, reason=reason, must_probe=must_probe)
        self._ask(lambda: self._client.broken(self.worker, message))
        self._close_generation(generation, reason, must_probe)

    def stop_job(self, reason: str) -> None:
        """Workers do not fit together, or this one uses us in a wrong way: that ends all workers. No effect unless it
        is one of those that train."""
        if self._store is None:
            return  # not announced
        with self._changed:
            generation = self._generation
        message = Broken(incarnation=self._incarnation, generation=generation, reason=reason, is_fatal=True)
        with contextlib.suppress(EverstepError):  # it is over already, or the coordinator is away for good
            self._ask(lambda: self._client.broken(self.worker, message))

    def report_settled(self, generation: int, step: int) -> None:
        message = Settled(incarnation=self._incarnation, generation=generation, step=step)

        def report() -> None:
            with contextlib.suppress(EverstepError):  # the watcher sees the same trouble and reports it
                self._ask(lambda: self._client.settled(self.worker, message))

        threading.Thread(target=self._guarded, args=(report,), name="everstep-settled", daemon=True).start()

    def may_leave(self, generation: int, step: int, reason: str, *, is_asked: bool = False) -> bool:
        """Ask to leave after `step`. False: the generation closed, take part in the next one and ask again."""
        with self._changed:
            self._is_leaving = True
        message = Leave(
            incarnation=self._incarnation, generation=generation, step=step, reason=reason, is_asked=is_asked
        )
        while True:
            left = self._ask(lambda: self._client.leave(self.worker, message))
            if left.is_released:
                return True
            if left.is_closed:
                with self._changed:
                    self._is_leaving = False
                self._close_generation(generation, left.reason, False)
                return False

    def close(self) -> None:
        self._stop.set()
        with self._changed:
            self._changed.notify_all()
            group, self._group = self._group, None
        if group is not None:
            group.close()
        self._client.close()
        for thread in self._threads:
            thread.join(timeout=5)
        self._probes.close()
        self._store = None

    def _ask(self, call: Callable[[], T]) -> T:
        """Ask the coordinator; while it is away, again and again until the deadline."""
        return patiently(call, deadline_s=self._deadline_s, stop=self._stop)

    def _ask_and_wait(self, call: Callable[[str, M], T], message: M) -> T:
        """With a call that may be held. A repetition may not: the fence counts on a short last call."""
        tries = itertools.chain([message], itertools.repeat(replace(message, wait_s=0.0)))
        return self._ask(lambda: call(self.worker, next(tries)))

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _guarded(self, duty: Callable[[], None]) -> None:
        """Heartbeats, fence and regrouping must not end in silence: the script gets the error that ended them, at once.
        If that fails too, the process ends: the others then continue without it, instead of waiting for it."""
        try:
            try:
                duty()
            except (EverstepError, JobFinished) as error:
                self._fail(error)
            except Exception as error:
                log.error("%s failed", threading.current_thread().name, exc_info=error)
                self._fail(
                    PermanentError(
                        f"{threading.current_thread().name} failed: {type(error).__name__}: {error}",
                        code="background-thread-failed",
                    )
                )
        except BaseException as error:
            if not self._stop.is_set():
                log.critical("this worker can neither continue nor be stopped, and ends", exc_info=error)
                os._exit(1)

    # --- the watcher ------------------------------------------------------------------------------------

    def _watch(self) -> None:
        seen, asked, known, wait_s = 0, 0, (0, 0), self._held_s
        while not self._stop.is_set():
            with self._changed:
                generation = self._generation
            if generation != asked:
                seen, asked = 0, generation  # what was seen of another generation says nothing of this one
            progress = self._board.progress
            message = Watch(
                incarnation=self._incarnation,
                generation=generation,
                seen=seen,
                step=progress.step,
                phase=progress.phase,
                phase_s=time.monotonic() - progress.since,
                longest_step_s=progress.longest_step_s,
                longest_wait_s=progress.longest_wait_s,
                state_bytes=progress.state_bytes,
                wait_s=wait_s,
            )
            try:
                reply = self._ask_and_wait(self._client.watch, message)
            except EverstepError as error:
                if not self._is_leaving:  # released meanwhile, it is refused: all is well
                    self._fail(error)
                return
            seen = reply.seen
            wait_s = 0.0 if reply.leavers else self._held_s  # see soon whether this worker continues without them
            self._probes.answer()
            if (generation, reply.newcomers) != known and (reply.newcomers or self.newcomers):
                emit("newcomers.known", generation=generation, number=reply.newcomers)
            known, self.newcomers = (generation, reply.newcomers), reply.newcomers
            if reply.is_stopped:
                self._fail(_over(reply))
                return
            if reply.is_closed and generation:
                is_in_next = reply.generation > generation and self._must_arrive  # the end was in good order
                if not is_in_next:
                    self._close_generation(generation, reply.reason, reply.must_probe)
            elif outstayed := self._outstayed(reply.leavers):
                self.report_broken(generation, f"{outstayed} left in good order; {self.worker} continues")

    def _outstayed(self, leavers: dict[str, int]) -> str:
        """Members that want to go after a step which this worker has behind it, while it is in a further one."""
        step = self._board.progress.step
        gone = [name for name, last in leavers.items() if name != self.worker and step >= last]
        return ", ".join(gone) if self.is_in_step else ""

    def _fail(self, error: EverstepError | JobFinished) -> None:
        with self._changed:
            if self._stop.is_set():
                return
            self._failure = error
            group, generation = self._group, self._generation
            self._changed.notify_all()
        try:
            if group is not None:
                group.break_()
        finally:
            self._on_closed(generation)

    def _close_generation(self, generation: int, reason: str, must_probe: bool) -> None:
        with self._changed:
            if self._generation != generation or self._is_closed or self._is_leaving:
                return
            is_news = not self._must_arrive
            self._is_closed = True
            self._must_probe = must_probe
            self._must_arrive = True
            group = self._group
            self._changed.notify_all()
        if is_news:
            emit("generation.closed", generation=generation, reason=reason)
            log.info("generation %d closed: %s", generation, reason)
        if group is not None:
            group.break_(reason)
        self._on_closed(generation)

    # --- the regrouper ----------------------------------------------------------------------------------

    def _regroup(self) -> None:
        while not self._stop.is_set():
            with self._changed:
                while not self._must_arrive and not self._stop.is_set():
                    self._changed.wait()
            if not self._stop.is_set():
                self._join_next()

    def _join_next(self) -> None:
        with self._changed:
            generation, must_probe = self._generation, self._must_probe
        unreachable = self._probe(generation) if must_probe and generation else []
        world = self._await_generation(unreachable)
        if world is None:
            return
        with self._changed:
            self._generation, self._is_closed, self._must_arrive = world.generation, False, False
            self._must_probe = False
            self._group = None
        emit("generation.formed", generation=world.generation, rank=world.rank, size=world.size, reason=world.reason)
        self._form(world)

    def _await_generation(self, unreachable: list[str]) -> World | None:
        began, reported, wait_s = time.monotonic(), "", 0.0
        while not self._stop.is_set():
            with self._changed:
                settled, step, max_workers = self._arrival
                generation = self._generation
            message = Arrive(
                incarnation=self._incarnation,
                generation=generation,
                settled=settled,
                step=step,
                max_workers=max_workers,
                unreachable=unreachable,
                wait_s=wait_s,
            )
            arrived = self._ask_and_wait(self._client.arrive, message)
            if arrived.is_stopped:
                raise _over(arrived)
            if arrived.is_formed:
                check_size(arrived.size)
                return World(
                    generation=arrived.generation,
                    rank=arrived.rank,
                    size=arrived.size,
                    continues=arrived.continues,
                    store_address=arrived.store_address,
                    store_port=arrived.store_port,
                    job=self._client.job,
                    reason=arrived.reason,
                )
            kind = re.sub(r"[0-9.]+", "", arrived.reason)  # the same with another number is not news
            if time.monotonic() - began > _REPORTED_AFTER_S and kind != reported:
                reported, wait_s = kind, self._held_s
                emit("worker.waiting", reason=arrived.reason)
        return None

    def _form(self, world: World) -> None:
        """Form the group in a thread of its own: with a peer that died meanwhile, forming would block."""
        outcome: list[Group | Exception] = []
        attempt = GroupForming()

        def form() -> None:
            try:
                group: Group | Exception = Group.form_in_generation(world, self._address, "engine", attempt)
            except Exception as error:
                group = error
            with self._changed:
                outcome.append(group)
                is_late = self._generation != world.generation or self._is_closed or self._stop.is_set()
                if not is_late and isinstance(group, Group):
                    self._group = group
                self._changed.notify_all()
            if is_late and isinstance(group, Group):
                group.close()

        background.start("everstep-form", form, attempt.give_up)
        with self._changed:
            while not outcome and not self._is_closed and not self._stop.is_set():
                self._changed.wait()
        if not outcome:
            attempt.give_up()
        if outcome and isinstance(outcome[0], Exception):
            reason = (
                f"{self.worker} could not form the group of generation {world.generation}: {gloo_words(outcome[0])}"
            )
            log.warning("%s", reason)
            self.report_broken(world.generation, reason, must_probe=True)

    def _probe(self, generation: int) -> list[str]:
        """Which members of the generation do not accept a connection from here."""
        view: GenerationView = self._ask(lambda: self._client.generation(generation))
        others = {m.worker: (m.address, m.probe_port) for m in view.members if m.worker != self.worker}
        return sorted(set(others) - reachable(others))


def _over(reply: Watched | Arrived) -> JobFinished | JobStopped:
    return JobFinished(reply.reason) if reply.is_finished else JobStopped(reply.reason, code="job-stopped")
