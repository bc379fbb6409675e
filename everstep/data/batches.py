"""Hand out batches of samples in the order in which they will come out of a loader, and know which is which.

torch's loader gives its t-th batch from process t % num_workers. So batches are bound to numbers in that order, also
for a process that has not asked yet; then what comes out next is always the oldest that was handed out and not taken.
Where steps are taken together with others, a worker that has no sample free gets a ghost: a batch that counts for
nothing, so that the others need not wait for it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from everstep import wire
from everstep.data.held_leases import RecordBatch
from everstep.data.leases import Leases, in_words
from everstep.data.permutation import Permutation
from everstep.errors import UsageError

log = logging.getLogger("everstep")

GHOST_S = 0.02  # a batch is waited for this long before a ghost is handed out
PATIENCE_S = 10.0  # then a warning says what is waited for
MANY = 1024  # batches: a script that has reported none of this many will report none
TRAIN_ALL = "call the training function once for each batch that comes out of the loader, in that order"

Key = tuple[int, int]  # the loader, and how often it has been iterated before


class Records:
    """Which record of the dataset is at a position: in the dataset's order, or shuffled in each epoch."""

    def __init__(self, size: int, *, shuffle: bool, seed: int) -> None:
        self.size, self._shuffle, self._seed = size, shuffle, seed
        self._order: Permutation | None = None  # of the epoch that was asked for last

    def indices(self, parts: Iterable[wire.LeasePart]) -> list[int]:
        return [index for part in parts for index in self._of_part(part)]

    def _of_part(self, part: wire.LeasePart) -> Iterable[int]:
        epoch, start = divmod(part.start, self.size)  # a part is of one epoch
        if not self._shuffle:
            return range(start, start + part.count)
        order = self._order  # several threads ask
        if order is None or order.epoch != epoch:
            order = self._order = Permutation(self.size, self._seed, epoch)
        found: list[int] = order.at(np.arange(start, start + part.count)).tolist()
        return found


class LoaderBatches:
    def __init__(self, leases: Leases, dataset: str, spec: wire.DatasetSpec) -> None:
        self._leases, self._dataset, self._batch_size = leases, dataset, spec.batch_size
        self._records = Records(spec.size, shuffle=spec.shuffle, seed=spec.seed)
        self.in_steps = False
        self.has_ended = False  # all that take steps together have agreed on it
        self._is_rehearsed = True  # False: the next batch is a ghost, for a rehearsal without leases
        self._key: Key = (-1, 0)
        self._next = 0  # the number of the next batch of this iteration
        self._coming: dict[int, RecordBatch] = {}  # bound and not taken, by number
        self._last: RecordBatch | None = None  # that was not a ghost
        self._taken_at = 0.0
        self._trainer: int | None = None  # the thread that trains
        self._is_reported = self._is_warned = self._is_end_reported = False

    # --- for the reader of records ---

    def obtain(self, key: Key, number: int) -> tuple[RecordBatch, list[int]] | None:
        """The batch of this number, and its records; None at the end of the data."""
        asked_at, is_patient = time.monotonic(), self._leases.is_started
        with self._leases.changed:
            self._begin(key)
            self._check_taken()
            while (found := self._find(key, number, asked_at)) is None:
                if self._is_over():
                    self._warn_of_left_out()
                    return None
                now = time.monotonic()
                if is_patient and now >= asked_at + PATIENCE_S:
                    is_patient = False
                    self._warn_of_waiting(now - asked_at)
                self._leases.changed.wait(self._pause_s(asked_at, now, is_patient))
        return found, self._indices(found)

    def amend(self, key: Key, number: int, failed: Sequence[tuple[int, str]]) -> None:
        """Records of this batch, counted from its beginning, could not be read, and why."""
        with self._leases.changed:
            handed = self._coming.get(number)
            if key != self._key or handed is None:
                return
            parts, failures = _split(handed.parts, dict(failed))
            self._coming[number] = replace(handed, parts=parts)
            if handed is self._last:
                self._last = self._coming[number]
            self._leases.fail(failures)

    def abandon(self, key: Key, number: int) -> None:
        """This batch will not come out: reading it failed."""
        with self._leases.changed:
            if key == self._key and (handed := self._coming.pop(number, None)):
                self._leases.put_back(handed.parts)

    # --- for the training loop ---

    def take(self) -> RecordBatch:
        leases = self._leases
        with leases.changed:
            while True:
                leases.raise_failure()
                if not self.in_steps or (leases.is_current and leases.generation):
                    break
                leases.changed.wait()
            number = next((each for each, handed in self._coming.items() if not handed.is_void), None)
            if number is None:
                raise UsageError(
                    f"the training function was called, but every batch of dataset {self._dataset} that was handed "
                    f"out ({self._next}) has been trained on",
                    hint=TRAIN_ALL,
                    code="no-batch-handed-out",
                )
            handed, self._is_rehearsed = self._coming.pop(number), True
            self._taken_at, self._trainer = time.monotonic(), threading.get_ident()
            leases.changed.notify_all()
            if not handed.is_ghost and not leases.holds(handed.parts):  # this worker was thought lost meanwhile
                leases.put_back(handed.parts)
                handed = RecordBatch(parts=(), epoch=handed.epoch, is_ghost=True)
        return handed

    def rehearse(self) -> None:
        """Make the next batch a ghost, because no records are leased yet."""
        with self._leases.changed:
            self._is_rehearsed = False
            self._leases.changed.notify_all()

    def report(self, number: int | None) -> None:
        """The next `number` records that were handed out are done; None: the next batch."""
        with self._leases.changed:
            self._leases.raise_failure()
            self._is_reported = True
            handed = sum(each.num_records for each in self._coming.values())
            if number is None:
                number = next((each.num_records for each in self._coming.values() if each.parts), self._batch_size)
            if number > handed:
                raise UsageError(
                    f"{number} records of dataset {self._dataset} are reported as done; {handed} have been handed out "
                    "and not reported",
                    hint="report each batch once",
                    code="more-reported-than-handed-out",
                )
            while number:
                first, batch = next(iter(self._coming.items()))
                done, rest = _first(batch.parts, number)
                number -= sum(part.count for part in done)
                self._leases.report(done)
                if rest:
                    self._coming[first] = replace(batch, parts=rest)
                else:
                    del self._coming[first]

    def end(self) -> None:
        with self._leases.changed:
            self.has_ended = True
            self._leases.changed.notify_all()

    # --- under `changed` ---

    def _begin(self, key: Key) -> None:
        """A new iteration: what was handed out in the one before and not used goes back."""
        if key <= self._key:
            return
        if self.in_steps or self._is_reported:
            for handed in self._coming.values():
                self._leases.put_back(handed.parts)
        self._key, self._next = key, 0
        self._coming.clear()
        self._leases.changed.notify_all()

    def _check_taken(self) -> None:
        """A script that trains and reads in one thread has trained on all that came out, or has left a batch out: the
        next one would be taken for it. With a loader's processes this is unknown: they read ahead."""
        if self.in_steps and self._trainer == threading.get_ident() and self._num_untaken:
            raise UsageError(
                f"the next batch of dataset {self._dataset} is asked for, and {self._num_untaken} that came out before "
                "was not trained on",
                hint=TRAIN_ALL,
                code="batch-left-out",
            )

    @property
    def _num_untaken(self) -> int:
        return sum(not handed.is_void for handed in self._coming.values())

    def _find(self, key: Key, number: int, asked_at: float) -> RecordBatch | None:
        self._leases.raise_failure()
        if key != self._key:
            raise UsageError(
                f"another loader has begun to take records of dataset {self._dataset}: this one's iteration is over",
                hint="iterate one loader of a RecordIndexService at a time",
                code="another-loader-began",
            )
        while not self.has_ended and (number >= self._next or self._coming[number].is_void):
            if (handed := self._next_batch(number, asked_at)) is None:
                return None
            self._coming[min(number, self._next)] = handed
            self._next = max(self._next, min(number, self._next) + 1)
        return self._coming.get(number)

    def _next_batch(self, number: int, asked_at: float) -> RecordBatch | None:
        if not self._is_rehearsed:
            return None if self._num_untaken else RecordBatch(parts=(), epoch=0, is_ghost=True)
        cut = self._leases.cut()
        if cut is not None:
            if len(self._coming) >= MANY and not (self.in_steps or self._is_reported):
                self._do_without_reports()
            self._last = cut
            return cut
        if self._may_be_ghost() and number <= self._next and time.monotonic() >= self._ghost_at(asked_at):
            last = self._last or RecordBatch(parts=(), epoch=0)
            return RecordBatch(parts=(), epoch=last.epoch, repeats=last.parts, is_ghost=True)
        return None

    def _do_without_reports(self) -> None:
        """Alone, batches handed out long ago count as done. With others, only reported ones do."""
        if not self._leases.is_shared:
            self._leases.report(self._coming.pop(next(iter(self._coming))).parts)
        elif not self._is_warned:
            self._is_warned = True
            log.warning(
                "dataset %s: %d batches were handed out here and none was reported as done: call report_batch_done(), "
                "or use a controller",
                self._dataset, len(self._coming),
            )  # fmt: skip

    def _may_be_ghost(self) -> bool:
        """One ghost at a time, and only if the training waits for a batch: all that was handed out is taken."""
        return self.in_steps and self._leases.has_answer and not self._num_untaken

    def _ghost_at(self, asked_at: float) -> float:
        return max(asked_at, self._taken_at) + GHOST_S

    def _pause_s(self, asked_at: float, now: float, is_patient: bool) -> float | None:
        pauses = [asked_at + PATIENCE_S - now] if is_patient else []
        pauses += [self._ghost_at(asked_at) - now] if self._may_be_ghost() else []
        return max(0.001, min(pauses)) if pauses else None

    def _is_over(self) -> bool:
        if self.in_steps:
            return self.has_ended
        return self._leases.is_end or self._leases.is_exhausted

    def _indices(self, handed: RecordBatch) -> list[int]:
        parts = handed.repeats if handed.is_ghost else handed.parts
        return self._records.indices(parts) or [n % self._records.size for n in range(self._batch_size)]

    def _warn_of_left_out(self) -> None:
        left_out = self._leases.left_out
        if left_out and not self._is_end_reported:
            self._is_end_reported = True
            log.warning(
                "dataset %s: %d samples were left out, since a loader drops a batch of fewer than batch_size=%d: %s. "
                "everstep.ShardDataset delivers them",
                self._dataset, sum(each.num_records for each in left_out), self._batch_size, in_words(left_out),
            )  # fmt: skip

    def _warn_of_waiting(self, waited_s: float) -> None:
        unused = sum(handed.num_records for handed in self._coming.values())
        way_out = f"not trained on: {TRAIN_ALL}" if self.in_steps else "not reported: report_batch_done()"
        hint = f"; {unused} were handed out here and {way_out}" if unused else ""
        reason = self._leases.reason or "the next lease has been asked for"
        log.warning("dataset %s: no sample for %.0f s: %s%s", self._dataset, waited_s, reason, hint)


def _first(
    parts: Sequence[wire.LeasePart], number: int
) -> tuple[tuple[wire.LeasePart, ...], tuple[wire.LeasePart, ...]]:
    """The first `number` samples, and the rest."""
    head: list[wire.LeasePart] = []
    tail: list[wire.LeasePart] = []
    for part in parts:
        count = min(number, part.count)
        number -= count
        if count:
            head.append(replace(part, count=count))
        if count < part.count:
            tail.append(replace(part, start=part.start + count, count=part.count - count))
    return tuple(head), tuple(tail)


def _split(
    parts: Sequence[wire.LeasePart], failed: dict[int, str]
) -> tuple[tuple[wire.LeasePart, ...], list[wire.FailedPart]]:
    """The parts without the samples that failed, and those."""
    good: list[wire.LeasePart] = []
    bad: list[wire.FailedPart] = []
    offset = 0
    for part in parts:
        for position in range(part.start, part.start + part.count):
            reason = failed.get(offset)
            offset += 1
            if reason is not None:
                bad.append(wire.FailedPart(lease=part.lease, start=position, count=1, reason=reason))
            elif good and (last := good[-1]).lease == part.lease and last.start + last.count == position:
                good[-1] = replace(last, count=last.count + 1)
            else:
                good.append(wire.LeasePart(lease=part.lease, start=position, count=1))
    return tuple(good), bad
