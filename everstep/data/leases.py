"""Keep the next samples ready: a thread that leases ahead, reports, gives back what others need, one call at a time.

All that it shares with the rest is guarded by `changed`, which is notified at every change. While it waits for
something to be free it can still report: a later call ends one that is held at the coordinator.
Does not know what the batches are used for."""

from __future__ import annotations

import itertools
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from everstep import env, wire
from everstep.data.held_leases import HeldLeases, LeaseReport, LeaseReports, RecordBatch
from everstep.engine import incarnation
from everstep.errors import Abandoned, EverstepError, JobStopped, Refused, TemporaryError
from everstep.events import emit
from everstep.retry import patiently

if TYPE_CHECKING:
    from everstep.client.calls import Coordinator  # httpx: not needed by a worker that is alone
    from everstep.data.local_leases import LocalLeases

T = TypeVar("T")

log = logging.getLogger("everstep")

WAIT_S = 1.0  # a call that finds nothing free is held this long
REPORT_S = 0.25  # reports that no one waits for are gathered this long
RENEW_S = 2.0  # a holder of leases makes a call at least this often: it may be asked to give back
MODEST_S = 0.25  # after giving samples back and needing some again, ask for none for this long
CLOSE_S = 5.0  # the longest time for the last reports
MOST_LEASES = 64
LONGEST_BATCH_S = 10.0  # a longer pause is not a batch's: a validation, say
UNKNOWN_BATCH_S = 1.0
MOST_REASON = 1000  # characters of an error that are reported


@dataclass(frozen=True, kw_only=True, slots=True)
class _LeaseCall:
    """The content of one call, and its generation: facts about a step are valid in that generation alone."""

    message: LeaseReport
    generation: int
    wants: int
    is_held: bool  # at the coordinator, until something is free


def num_wanted(num_whole: int, batches_per_lease: int, call_s: float, batch_s: float) -> int:
    """How many leases to ask for, so that the next batch is there when it is needed, and no more: others need them."""
    ahead = 1 + min(math.ceil(3 * call_s / max(batch_s, 1e-6)), 8 * batches_per_lease)
    return min(MOST_LEASES, -(-max(0, ahead - num_whole) // batches_per_lease))


class Leases:
    """`worker`: this process's worker at the coordinator. None: no others take from it, and there is `LocalLeases`."""

    def __init__(
        self, coordinator: Coordinator | LocalLeases, worker: str | None, dataset: str, spec: wire.DatasetSpec
    ) -> None:
        self.changed = threading.Condition()
        self.is_end = False  # all samples of all epochs are done
        self.has_answer = False
        self.failure: BaseException | None = None
        self.left_out: list[RecordBatch] = []  # samples that no worker got: fewer than a batch, at an epoch's end
        self.is_shared = worker is not None  # samples that are not free now may be later
        self.delivers_tail = False  # a short batch may be cut
        self.generation = 0  # in whose steps the samples are used
        self.reason = "the dataset is being registered"  # why there is nothing
        self._coordinator, self._worker, self._dataset, self._spec = coordinator, worker or "", dataset, spec
        self._held, self._reports = HeldLeases(spec.batch_size), LeaseReports()
        self._stop = threading.Event()
        self._is_registered = False
        self._answered = 0  # the generation of the latest answer
        self._restore: wire.RestoreShards | None = None
        self._is_nothing_free = False
        self._refused_in: int | None = None  # reports wait for a generation after this
        self._is_closing = self._is_calling = False
        self._called_at = self._quiet_until = 0.0
        self._has_given_back = False  # and has needed none since: it would get the same again
        self._stuck_since: float | None = None  # fewer samples than a batch, and no more to be had
        self._call_s = 0.01
        self._batch_s = 0.0  # from one batch to the next, if there is one; 0: not known yet
        self._cut_at: float | None = None
        self._thread = threading.Thread(target=self._run, name=f"everstep-leases-{dataset}", daemon=True)

    # --- called by others ---------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    @property
    def is_started(self) -> bool:
        return self._thread.ident is not None

    def close(self) -> None:
        """Send the last reports, give back what is unused, end."""
        with self.changed:
            returned = self._held.take_out()
            if returned and self.is_shared:
                self._say(LeaseReport(returned=returned, is_urgent=True))
            self._is_closing = True
            self.changed.notify_all()
        if self.is_started:
            self._thread.join(CLOSE_S)
        self._stop.set()
        self._coordinator.close()
        if self.is_started:
            self._thread.join(CLOSE_S)

    def give_up(self, error: BaseException) -> None:
        with self.changed:
            self.failure = self.failure or error
            self.changed.notify_all()

    def raise_failure(self) -> None:
        if self.failure is not None:
            raise self.failure

    # Under `changed`, but for `report`, `fail`, `regroup` and `restore`, which take it themselves:

    @property
    def is_current(self) -> bool:
        """Whether the coordinator has been asked, in this generation, what is held."""
        return self._restore is None and self.has_answer and self._answered == self.generation

    @property
    def is_exhausted(self) -> bool:
        """This worker is alone, all has been leased, and all that it had is cut."""
        return self._is_nothing_free and not self.is_shared and self._held.num_uncut == 0

    def cut(self) -> RecordBatch | None:
        if not self.is_shared:
            self._settle_remainders()  # before anything of a later epoch is cut
        if self._has_given_back:
            self._has_given_back, self._quiet_until = False, time.monotonic() + MODEST_S
            self.changed.notify_all()
        batch = self._held.cut()
        self._time_cut(time.monotonic() if batch is not None else None)
        if batch is not None and (self._num_wanted() or not self._reports.content.is_empty):
            self.changed.notify_all()
        return batch

    def _time_cut(self, now: float | None) -> None:
        """None: there is nothing to cut, and the time until there is says nothing about how long a batch takes."""
        if now is not None and self._cut_at is not None:
            newest = min(now - self._cut_at, LONGEST_BATCH_S)
            self._batch_s += (0.2 if self._batch_s else 1.0) * (newest - self._batch_s)
        self._cut_at = now

    def holds(self, parts: Iterable[wire.LeasePart]) -> bool:
        return self._held.holds(parts)

    def put_back(self, parts: Iterable[wire.LeasePart]) -> None:
        self._held.put_back(parts)
        self.changed.notify_all()

    def report(self, done: Iterable[wire.LeasePart], on_durable: Callable[[], None] | None = None) -> None:
        self._say(LeaseReport(done=tuple(done), on_durable=(on_durable,) if on_durable else ()))

    def fail(self, failed: Iterable[wire.FailedPart]) -> None:
        short = tuple(replace(each, reason=each.reason[:MOST_REASON]) for each in failed)
        self._say(LeaseReport(failed=short, is_urgent=True))

    def regroup(self, generation: int, done: Iterable[wire.LeasePart], *, settles: bool) -> None:
        with self.changed:
            self.generation = generation
            self._say(LeaseReport(done=tuple(done), settles=settles, is_urgent=True))

    def restore(self, message: wire.RestoreShards) -> None:
        """All that is held becomes void."""
        with self.changed:
            self._restore = message
            self._held.forget()
            self.changed.notify_all()

    def checkpoint(self) -> wire.ShardCheckpoint:
        """Of all that was reported so far. Not under `changed`: it waits."""
        with self.changed:
            self._hurry()
            while self._is_calling or not self._reports.content.is_empty or self._restore is not None:
                self.raise_failure()
                self.changed.wait()
            self.raise_failure()
        return self._ask(lambda: self._coordinator.shard_checkpoint(self._dataset))

    # --- the thread ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            spec = self._ask(lambda: self._coordinator.register_dataset(self._dataset, self._spec)).spec
            with self.changed:
                self._spec, self._is_registered = spec, True
                self.reason = "the first lease has been asked for"
            while (asked := self._await_call()) is not None:
                self._make(asked)
        except BaseException as error:
            if not (isinstance(error, Abandoned) and self._is_closing):
                self.give_up(error)

    def _await_call(self) -> _LeaseCall | None:
        """The next call to be made; None: all is reported, and the thread ends."""
        with self.changed:
            self._is_calling = False
            self.changed.notify_all()
            while True:
                if self.failure is not None:
                    return None
                now = time.monotonic()
                if self._is_due(now) or (self._restore is not None and not self._is_closing):
                    break
                if self._is_closing:
                    return None
                if self._num_wanted() and (self.is_shared or not self._is_nothing_free):
                    break
                if self._stuck() and not self.is_shared:
                    break
                if self._held.num_leases and now >= self._called_at + RENEW_S:
                    break
                self.changed.wait(self._pause_s(now))
            message = LeaseReport() if self._must_wait_for_generation() else self._reports.take()
            wants = 0 if self._is_closing else self._num_wanted()
            is_held = message.is_empty and wants > 0 and self._is_nothing_free and self._restore is None
            self._is_calling = not is_held
            return _LeaseCall(message=message, generation=self.generation, wants=wants, is_held=is_held)

    def _is_due(self, now: float) -> bool:
        content = self._reports.content
        if content.is_empty or self._must_wait_for_generation():
            return False
        is_awaited = bool(content.done) and self._held.num_whole() == 0  # maybe an epoch ends with it
        return content.is_urgent or is_awaited or self._is_closing or now >= self._reports.since + REPORT_S

    def _must_wait_for_generation(self) -> bool:
        return self._refused_in is not None and self.generation <= self._refused_in

    def _num_wanted(self) -> int:
        if self.is_end or self._is_closing or not self._is_registered:
            return 0
        if self._has_given_back or time.monotonic() < self._quiet_until:
            return 0
        per_lease = self._spec.minibatches_per_shard or 1
        return num_wanted(self._held.num_whole(), per_lease, self._call_s, self._batch_s or UNKNOWN_BATCH_S)

    def _pause_s(self, now: float, *, is_calling: bool = False) -> float | None:
        """Until the next thing is due. While a call is held, none is made to renew."""
        is_to_report = not self._reports.content.is_empty and not self._must_wait_for_generation()
        pauses = [self._reports.since + REPORT_S - now] if is_to_report else []
        pauses += [self._called_at + RENEW_S - now] if self._held.num_leases and not is_calling else []
        pauses += [self._quiet_until - now] if self._quiet_until > now else []
        return max(0.001, min(pauses)) if pauses else None

    def _make(self, call: _LeaseCall) -> None:
        restore = self._restore
        if restore is not None:
            self._ask(lambda: self._coordinator.restore_shards(self._dataset, restore))
        request = self._request(call)
        began = time.monotonic()
        answer = self._lease_and_wait(request) if call.is_held else self._lease(request, call.message)
        if answer is None:
            return
        with self.changed:
            self._called_at = time.monotonic()
            if not call.is_held:
                self._call_s += 0.2 * (self._called_at - began - self._call_s)
            if restore is not None:
                self._held.forget()
                self._restore = None if self._restore is restore else self._restore
            self._apply(answer, request)
        self._settle_remainders()
        for tell in call.message.on_durable:
            tell()

    def _request(self, call: _LeaseCall) -> wire.LeaseRequest:
        message, name = call.message, incarnation.current()
        return wire.LeaseRequest(
            incarnation=name,
            dataset=self._dataset,
            request=_next_request(name, self._dataset),
            generation=call.generation,
            settles=message.settles and call.generation > 0,
            done=list(message.done),
            returned=list(message.returned),
            failed=list(message.failed),
            wants=call.wants,
            batch_s=self._batch_s,
            wait_s=WAIT_S if call.is_held else 0.0,
        )

    def _ask(self, call: Callable[[], T]) -> T:
        """An unreachable coordinator is waited for, up to a deadline, and then an error; never the end of the data."""
        return patiently(call, env.coordinator_deadline_s(), stop=self._stop)

    def _lease(self, request: wire.LeaseRequest, message: LeaseReport) -> wire.Leased | None:
        try:
            return self._ask(lambda: self._coordinator.report_and_lease(self._worker, request))
        except Refused:
            if not (request.generation and message.done):
                raise
        # A later generation has reported what was committed before it. The rest is reported again in that one, which
        # this worker is yet to join; unless it has left the job: then this call is refused too.
        name = incarnation.current()
        number = _next_request(name, self._dataset)
        rest = replace(request, incarnation=name, request=number, done=[], settles=False, wants=0)
        answer = self._ask(lambda: self._coordinator.report_and_lease(self._worker, rest))
        with self.changed:
            self._reports.add(replace(message, returned=(), failed=(), settles=False), time.monotonic())
            self._refused_in = request.generation
            self._apply(answer, rest)
        return None

    def _lease_and_wait(self, request: wire.LeaseRequest) -> wire.Leased | None:
        """Held at the coordinator. None: there is something to report first, which ends the call there."""
        answers: list[wire.Leased | EverstepError] = []

        def ask() -> None:
            try:
                answer: wire.Leased | EverstepError = self._coordinator.report_and_lease(self._worker, request)
            except EverstepError as error:
                answer = error
            with self.changed:
                answers.append(answer)
                self.changed.notify_all()

        threading.Thread(target=ask, name=f"everstep-wait-{self._dataset}", daemon=True).start()
        with self.changed:
            while not answers:
                now = time.monotonic()
                if self._is_due(now) or self._is_closing or self._restore is not None or self.failure is not None:
                    return None
                self.changed.wait(self._pause_s(now, is_calling=True))
        if isinstance(answers[0], TemporaryError):
            self._is_nothing_free = False  # ask again, patiently
            return None
        if isinstance(answers[0], EverstepError):
            raise answers[0]
        return answers[0]

    def _apply(self, answer: wire.Leased, request: wire.LeaseRequest) -> None:
        num_new = self._held.update(answer.leases)
        self.has_answer = True
        self._answered = request.generation
        self.reason = answer.reason
        self.is_end = answer.is_end
        if num_new or request.wants:
            self._is_nothing_free = not num_new
        if answer.give_back and (returned := self._held.take_out(answer.give_back)):
            log.info(
                "%s: %d samples are given back: others wait for them",
                self._dataset,
                sum(part.count for part in returned),
            )
            self._say(LeaseReport(returned=returned, is_urgent=True))
            self._has_given_back = True
        self.changed.notify_all()
        for refused in answer.refused:
            if not refused.is_done:
                log.error("dataset %s: a report was refused: %s", self._dataset, refused.reason)
                emit("report.refused", dataset=self._dataset, lease=refused.lease, start=refused.start,
                     count=refused.count, reason=refused.reason)  # fmt: skip
        if answer.is_stopped and not answer.is_end:
            raise JobStopped(answer.reason, code="job-stopped-by-lease")

    def _settle_remainders(self) -> None:
        """Fewer samples than a batch, and no more to come: cut short, or left out, or given to a worker that can use
        them."""
        with self.changed:
            epochs = [(epoch, self._held.num_left(epoch)) for epoch in self._stuck()]
            if self.delivers_tail:
                for epoch, _ in epochs:
                    self._held.end_epoch(epoch)
                self.changed.notify_all()
                return
            now = time.monotonic()
            self._stuck_since = (self._stuck_since or now) if epochs else None
        for epoch, number in epochs:
            is_rest = self._is_rest(epoch, number)
            with self.changed:
                if epoch not in self._stuck():
                    continue
                if is_rest:
                    self._leave_out(self._held.take_remainder(epoch))
                elif self._stuck_since is not None and now >= self._stuck_since + WAIT_S:
                    # Others hold samples of this epoch, maybe as few: one of us gets all.
                    self._stuck_since = None
                    self._say(LeaseReport(returned=self._held.take_remainder(epoch).parts, is_urgent=True))

    def _stuck(self) -> list[int]:
        """Epochs of which fewer samples than a batch are here, and no more seem to come."""
        if self._is_nothing_free and not self._held.has_batch:
            return self._held.remainders()
        # Alone, one epoch is leased after the other.
        return [] if self.is_shared else self._held.overtaken()

    def _is_rest(self, epoch: int, number: int) -> bool:
        """Whether `number` samples are all that is not done of this epoch: all of it has been leased, and what is out
        is what this worker has. Alone, that is asked when no more can be had."""
        if not self.is_shared:
            return True
        views = self._ask(self._coordinator.datasets).datasets  # type: ignore[union-attr]  # not LocalLeases
        (view,) = [each for each in views if each.dataset == self._dataset]
        return any(
            known.leased + known.waiting == number and known.done + known.skipped + number == view.spec.size
            for known in view.epochs
            if known.epoch == epoch
        )

    def _leave_out(self, cut: RecordBatch) -> None:
        self.left_out.append(cut)
        spans = [[part.start, part.start + part.count] for part in cut.parts]
        emit("records.left_out", dataset=self._dataset, epoch=cut.epoch, positions=spans, records=cut.num_records)
        self._say(LeaseReport(done=cut.parts, is_urgent=True))

    def _say(self, message: LeaseReport) -> None:
        with self.changed:
            self._reports.add(message, time.monotonic())
            self.changed.notify_all()

    def _hurry(self) -> None:
        if not self._reports.content.is_empty:
            self._say(LeaseReport(is_urgent=True))


_requests: dict[tuple[int, str, str], Iterator[int]] = {}


def _next_request(name: str, dataset: str) -> int:
    """1, 2, …: also of a dataset that this process has used before by another object."""
    return next(_requests.setdefault((os.getpid(), name, dataset), itertools.count(1)))


def in_words(left_out: Iterable[RecordBatch]) -> str:
    """For people: which samples no worker got."""
    return "; ".join(
        f"{each.num_records} of epoch {each.epoch}, positions "
        + ", ".join(f"{part.start} to {part.start + part.count}" for part in each.parts)
        for each in left_out
    )
