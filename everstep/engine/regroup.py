"""One worker's way from generation to generation: join, settle with the others, agree with them, leave.

    NEW ── join ──► MUST_SETTLE ── settle ──► SETTLED ── peer lost, or a pulse ──► MUST_REGROUP ──► MUST_SETTLE
      └─ newcomer ─► ALONE ──── rehearsal ──────┘            any ── leave, or asked to ──► LEAVING

Settling brings all members of a generation to one state: they exchange hellos, the most advanced leads and sends its
state to those that do not hold it. It is repeated, in the next generation, until no member is lost meanwhile.
The membership decides which generation there is; what is held and sent is in `StepWork`."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import logging
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import Any

from everstep.engine.backend_use import BackendUse
from everstep.engine.default_group import DefaultGroup
from everstep.engine.fixed_world import LoneMembership
from everstep.engine.group import LARGEST_WORLD, TAG_HEADER, Group
from everstep.engine.inlet import Inlet
from everstep.engine.leadership import Leadership, MemberHello, check_fit, decide_leader, exchange
from everstep.engine.leaving import ASKED, LeaveRequest, Leaving, on_sigterm, wake_script
from everstep.engine.membership import Membership
from everstep.engine.pulse import ENDS, Header, header_bytes
from everstep.engine.state_room import StateRoom
from everstep.engine.state_routes import Route, find_routes
from everstep.engine.state_sender import StateSender
from everstep.engine.step_work import StepWork
from everstep.engine.transfer import Inlets, receive_state
from everstep.engine.worker_comparison import first_difference, way_out
from everstep.engine.world import ALONE, World
from everstep.errors import PeerLost, StateMismatch, UsageError
from everstep.events import emit
from everstep.ipc.progress_page import ProgressPage
from everstep.wire import COMPUTING, OUTSIDE, WAITING

log = logging.getLogger("everstep")

MakeMembership = Callable[[ProgressPage, Callable[[int], None]], LoneMembership | Membership]


class EngineState(Enum):
    """Where a worker is between two generations. What it does next is decided by this and the membership alone."""

    NEW = "new"  # not announced
    ALONE = "alone"  # announced as a newcomer; it joins the others after it has rehearsed a micro-batch
    MUST_SETTLE = "must settle"  # in a group whose members may hold different states
    SETTLED = "settled"  # all members hold the same state
    MUST_REGROUP = "must regroup"  # all agreed to end this generation, and arrive for the next
    LEAVING = "leaving"  # this worker has asked to leave, and takes no further step


def state_after(hellos: Sequence[MemberHello]) -> EngineState:
    """Once the members have said hello and the leader's state is everywhere.

    What a script does between two steps, such as a scheduler's step after an epoch, is not in the state that a newcomer
    gets then: all settle again, in the same generation, when the others come to their next micro-batch."""
    is_amid_agreement = any(hello.is_agreeing for hello in hellos)
    is_any_new = any(hello.settled == 0 for hello in hellos)
    return EngineState.MUST_SETTLE if is_amid_agreement and is_any_new else EngineState.SETTLED


class Regrouping:
    """`settled`: the last generation in which this worker held the state of all; 0: none yet."""

    def __init__(self, make_membership: MakeMembership, board: ProgressPage, work: StepWork) -> None:
        self.state = EngineState.NEW
        self.world: World = ALONE
        self.group: Group | None = None
        self.settled = 0
        self.came_late = False  # its first state was that of workers that were training
        self.is_asked_to_leave = False  # by SIGTERM; the next pulse says so
        self.is_rehearsing = False  # running a body whose result is thrown away
        self.rehearsed_step: int | None = None  # the step that the script sees until its next micro-batch, or the end
        self.follower: DefaultGroup | None = None  # has to follow the world, too
        self.board = board
        self._work = work
        self._leave_request: LeaveRequest | None = None
        self._backend = BackendUse(work)
        self._room: StateRoom | None = None
        self.membership = make_membership(board, self._generation_closed)
        self._sender = StateSender(work, self.membership.report_broken)

    # --- joining ------------------------------------------------------------------------------------------

    def join(self) -> None:
        """Form the first group. A newcomer does not wait here: it stays alone until its first micro-batch."""
        if self.group is not None:
            return
        self.membership.announce()
        if self.membership.is_newcomer:
            self.group, self.state = Group(ALONE), EngineState.ALONE
        else:
            self.membership.hold(0, 0, self.max_workers)
            self.membership.arrive(0)
            self._take_group()
        on_sigterm(self._ask_to_leave)
        faulthandler.register(signal.SIGUSR2, all_threads=True)  # the agent asks for stacks before it kills

    @property
    def max_workers(self) -> int | None:
        """How many can train together. A job that begins with too many is refused; those that come later are spares."""
        most = self._work.settings.num_micro_batches if self._work.has_settings else None
        is_beginning = self.settled == 0 and not self.membership.is_newcomer
        return most if is_beginning else min(most or LARGEST_WORLD, LARGEST_WORLD)

    @property
    def is_closed(self) -> bool:
        """The present generation is over: the next one comes with the next micro-batch, or the next answer."""
        return self.membership.is_closed(self.world.generation)

    @property
    def is_due(self) -> bool:
        """Before the next step, or the end, this worker has to regroup."""
        return self.state is not EngineState.SETTLED or self.is_closed

    # --- the next generation ------------------------------------------------------------------------------

    def be_ready(self) -> None:
        """Before a micro-batch: be settled in a generation that is open. Raises Leaving if this worker is to go."""
        must_leave = self.state is EngineState.LEAVING or (self.state is EngineState.ALONE and self.is_asked_to_leave)
        if must_leave and self.leave(ASKED):
            raise Leaving
        while self.is_due:
            self.regroup()

    def make_room(self) -> int:
        """For the others' state, before they wait for this worker. Returns its size."""
        state_bytes = self.membership.others_state_bytes()
        self._room = StateRoom(state_bytes) if state_bytes else None
        return state_bytes

    def arrive(self) -> None:
        """All have agreed to end this generation: stand ready for the next."""
        self.state = EngineState.MUST_REGROUP
        self.membership.arrive(self.world.generation)

    def report_broken(self, reason: str) -> None:
        self.membership.report_broken(self.world.generation, reason)

    def regroup(self, lost: PeerLost | None = None, *, is_agreeing: bool = False) -> None:
        """Wait for the next generation and settle in it; again, if that one breaks too.

        is_agreeing: the script is between two steps, and waits for the others' values."""
        started, request = time.monotonic(), self._leave_request
        if request is not None and request.await_answer():
            raise Leaving  # the others continue without this worker
        if self.world is ALONE:
            self.membership.hold(0, self._work.step, self.max_workers)
            self.membership.arrive(0)
        if lost is not None:
            self.report_broken(lost.message)
        self._work.drop_sum()
        while True:
            if self.world is ALONE or self.state is EngineState.MUST_REGROUP or self.is_closed:
                self._take_group()
            try:
                with self.stopping_all():
                    leadership = self._settle(is_agreeing)
                break
            except PeerLost as again:
                self.report_broken(again.message)
        self._leave_request = None
        if request is not None and request.reason != ASKED:  # else the next pulse says it again
            self.request_leave(request.reason)
        self._work.data.settled()
        emit("regroup.settled", generation=self.world.generation, size=self.world.size, rank=self.world.rank,
             step=self._work.step, seconds=time.monotonic() - started, reason=leadership.reason)  # fmt: skip

    def _take_group(self) -> None:
        group = self.membership.next_group(self.world.generation)
        if self.group is not None and self.group is not group:
            is_peer_lost = group.world.size < self.world.size  # a loss breaks the link, whichever is noticed first
            if self.group.link is not None and self.group.link.error and not is_peer_lost:
                self._work.device_way.note_error(self.membership.worker, self.group.link.error)
            self.group.close()
        self.group, self.world, self.state = group, group.world, EngineState.MUST_SETTLE
        if self._work.is_built:
            self._work.sum.keep_neighbors(group)
        if self.follower is not None:
            self.follower.follow(group)

    def _settle(self, is_agreeing: bool) -> Leadership:
        assert self.group is not None
        with Inlet(self.group.address) as inlet:
            return self._settle_with(inlet, self.group, is_agreeing)

    def _settle_with(self, inlet: Inlet, group: Group, is_agreeing: bool) -> Leadership:
        work, world, worker = self._work, self.world, self.membership.worker
        mine = work.hello(
            worker=worker,
            job=world.job,
            settled=self.settled,
            is_agreeing=is_agreeing,
            neighbors=group.neighbors,
            inlet=inlet.card,
        )
        with self.in_phase(WAITING):
            hellos = exchange(mine, group)
        hellos = work.renumber(hellos, world)
        leadership = decide_leader(hellos, world.continues)
        check_fit(hellos, leadership.leader, world.rank)
        lead = hellos[leadership.leader]
        choice = self._backend.choose(group, hellos)
        routes = find_routes(leadership.leader, leadership.receivers, [hello.neighbors for hello in hellos])
        inlets = [hello.inlet for hello in hellos]
        if world.rank == leadership.leader and leadership.receivers:
            is_between_steps = any(hello.is_agreeing for hello in hellos)
            with self.in_phase(COMPUTING):
                self._sender.send(group, routes[world.rank], inlets, worker, is_between_steps=is_between_steps)
        if choice.must_try:
            with self.in_phase(WAITING):
                self._backend.try_out(choice, group, worker)
        if world.rank in leadership.receivers:
            self._receive(routes[world.rank], inlet, inlets, is_beginning=lead.settled == 0)
        if self.settled == 0:
            self.came_late = lead.settled > 0
        self.state = state_after(hellos)
        if self.state is EngineState.SETTLED or self.settled:
            self.settled = world.generation
        self.membership.hold(self.settled, work.step, self.max_workers)
        self.membership.report_settled(world.generation, work.step)
        work.settle(hellos, leadership, world)
        log.info(
            "generation %d: rank %d of %d at step %d; %s",
            world.generation, world.rank, world.size, work.step, leadership.reason,
        )  # fmt: skip
        return leadership

    def _receive(self, route: Route, inlet: Inlet, inlets: Inlets, *, is_beginning: bool) -> None:
        assert self.group is not None
        group, num_asked, step = self.group, self._work.agreed.num_asked, self._work.step

        def show(phase: str) -> None:  # a long transfer is not a stall
            for each in (OUTSIDE, phase) if not group.is_broken else ():
                self.board.write(step=step, micro_batch=-1, phase=each)

        with self.in_phase(WAITING):
            room, self._room = self._room, None
            self._work.load(receive_state(group, route, self.membership.worker, inlet, inlets, show, room))
            self.board.write(step=self._work.step, micro_batch=-1, phase=OUTSIDE)
        if is_beginning:  # all begin, and have asked for the same values before
            self._work.agreed.num_asked = num_asked

    def _generation_closed(self, generation: int) -> None:
        """Called in one of the membership's threads, perhaps late: wake up a script that waits for this generation. A
        worker that is rehearsing is in no generation; for it, the job is over."""
        if self.is_rehearsing:
            wake_script()
        if self._work.is_built:
            self._work.sum.abort(generation)
        if (group := self.group) is not None and group.world.generation <= generation:
            group.break_()  # also if it is an earlier one, closed in good order
        if self.follower is not None:
            self.follower.generation_closed(generation)

    # --- between two steps --------------------------------------------------------------------------------

    def agree(self, value: Any, name: str | None) -> list[Any] | None:
        """What all workers say here, by rank. None: a peer's state took this worker to a later step meanwhile."""
        self.join()
        work = self._work
        step, name = work.step, name or work.agreed.name()
        while work.step == step and name not in work.agreed.answers:
            try:
                assert self.group is not None
                if self.group.is_broken:
                    raise PeerLost(f"the group of generation {self.world.generation} is broken", code="group-broken")
                # A generation closed in good order serves until the next micro-batch: there all workers are at one
                # place.
                with self.in_phase(WAITING), self.stopping_all():
                    work.agreed.agree(name, value, self.group)
            except PeerLost as lost:
                self.regroup(lost, is_agreeing=True)
        return work.agreed.answers[name] if work.step == step else None

    @property
    def agreeing(self) -> tuple[int, int]:
        """This worker's place among those that ask for answers now, and their number."""
        ranks = self._work.agreed.ranks
        if ranks is None or self.world.rank not in ranks:
            return self.world.rank, self.world.size
        return ranks.index(self.world.rank), len(ranks)

    @contextlib.contextmanager
    def in_phase(self, phase: str) -> Iterator[None]:
        """For work outside of micro-batches and their sum, so that a cut network is noticed there too."""
        before = self.board.progress
        self.board.write(step=self._work.step, micro_batch=before.micro_batch, phase=OUTSIDE)
        self.board.write(step=self._work.step, micro_batch=before.micro_batch, phase=phase)
        try:
            yield
        finally:
            self.board.write(step=self._work.step, micro_batch=before.micro_batch, phase=OUTSIDE)
            self.board.write(step=self._work.step, micro_batch=before.micro_batch, phase=before.phase)

    @contextlib.contextmanager
    def sharing(self) -> Iterator[None]:
        """Wraps work that the surviving workers finish if this one dies, even if it is rank 0."""
        self.board.note_shared(True)
        try:
            yield
        finally:
            self.board.note_shared(False)

    # --- workers that do not fit together -----------------------------------------------------------------

    @contextlib.contextmanager
    def stopping_all(self) -> Iterator[None]:
        """A mismatch is not a loss: the others must not continue without this worker."""
        try:
            yield
        except StateMismatch as mismatch:
            self.stop_job(mismatch.message)
            raise

    def stop_job(self, reason: str) -> None:
        """For all workers, with exit code 1. Not by one that joins a running job and does not fit: it is turned away.
        Where all begin, none of them is right."""
        if self.settled > 0 or self.world.continues == 0:
            self.membership.stop_job(reason)

    def stop_job_for(self, error: BaseException | None) -> None:
        """If the script uses us in a wrong way: a mistake in one worker's script is in all of them."""
        if isinstance(error, UsageError | StateMismatch):
            self.stop_job(f"{type(error).__name__}: {error.message}")

    def name_difference(self) -> None:
        """All come here in the same step, or at the end. Returns if the digests differ and nothing else does."""
        assert self.group is not None
        work = self._work
        names = {id(p): name for module in work.registry.modules for name, p in module.named_parameters()}
        mine = work.comparison.facts([names.get(id(p), "?") for p in work.gradients.parameters])
        with self.stopping_all():
            try:
                raws = self.group.gather(json.dumps([self.membership.worker, mine]).encode())
                difference = first_difference([json.loads(raw) for raw in raws])
            except PeerLost:  # one of them is gone already
                difference = "the settings of their optimizers, or their weights"
            if difference is not None:
                raise StateMismatch(
                    f"after {work.step} steps the workers are not the same: {difference}",
                    hint=way_out(difference),
                    code="workers-differ",
                )

    # --- the end ------------------------------------------------------------------------------------------

    def conclude(self) -> None:
        """No further step is wanted here: make sure that all hold the last one before any worker goes."""
        self.rehearsed_step = None
        if self.settled == 0 or self.state is EngineState.LEAVING:
            return
        while True:
            try:
                if self.is_due:
                    self.regroup()
                if self._swap_ends():
                    self._compare_ends()
                return
            except PeerLost as lost:
                self.regroup(lost)

    def _swap_ends(self) -> bool:
        """Whether all others end, too; else those that continue have learned that this worker does not."""
        assert self.group is not None
        number, generation = self._work.num_micro_batches, self.world.generation
        header = Header(generation=generation, step=self._work.step, kind=ENDS, weights=(-1.0,) * number)
        with self.in_phase(WAITING):
            raws = self.group.swap(header.pack(), [header_bytes(number)] * self.world.size, TAG_HEADER)
        return all(Header.unpack(raw).kind == ENDS for raw in raws)

    def _compare_ends(self) -> None:
        """No worker ends with other weights, or after another step, than the others."""
        assert self.group is not None
        if self.world.size == 1:
            return
        comparison = self._work.comparison
        comparison.note_weights(self._work.gradients.parameters)
        mine = [self._work.step, comparison.settings, comparison.weights]
        with self.in_phase(WAITING):
            said = [json.loads(raw) for raw in self.group.gather(json.dumps(mine).encode())]
        with self.stopping_all():
            if len(steps := {step for step, _, _ in said}) > 1:
                raise StateMismatch(f"workers end after different steps: {sorted(steps)}", code="ends-differ")
        if any(len({digest for digest in digests if digest}) > 1 for digests in list(zip(*said, strict=True))[1:]):
            self.name_difference()

    def part(self, *, is_leaver: bool) -> None:
        """Between two steps, all have heard who is asked to leave, and that others stay. Those that leave go now, with
        Leaving; the others continue without them."""
        if is_leaver:
            if self.leave(ASKED, is_agreeing=True):
                raise Leaving
            return
        if self.state is EngineState.SETTLED:
            self.arrive()
        self.regroup(is_agreeing=True)

    def leave(self, reason: str, *, is_agreeing: bool = False) -> bool:
        """Wait until no other worker needs this one's state any more. False: it was asked to go, and is needed for a
        further step; with that, it says again that it was asked."""
        request: LeaveRequest | None = self._leave_request or self.request_leave(reason)
        while request is not None:
            if request.await_answer():
                return True
            self.regroup(is_agreeing=is_agreeing)  # asks again, if the script has ended
            request = self._leave_request
        return False

    def request_leave(self, reason: str = ASKED) -> LeaveRequest:
        """Without a reason: SIGTERM's wish, which all have heard with the step just committed."""
        generation, step = self.world.generation, self._work.step
        self.state = EngineState.LEAVING
        self._leave_request = LeaveRequest(
            reason, lambda why: self.membership.may_leave(generation, step, why, is_asked=why == ASKED)
        )
        return self._leave_request

    def _ask_to_leave(self) -> None:
        self.is_asked_to_leave = True
        if self.is_rehearsing:  # no other worker waits for this one
            _ = self.is_closed  # raises JobFinished if that is why
            raise Leaving

    def close(self) -> None:
        if self.group is not None:
            self.group.close()
        self.membership.close()
