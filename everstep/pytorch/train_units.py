"""Lengths and periods of training: in batches, epochs, records or seconds. Pure.

A number is a period ("every n"), a collection is a schedule ("at these counts"). The progress before
and after a batch, which is the same on all workers, decides what is due."""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar

from everstep.errors import UsageError
from everstep.pytorch.progress import BatchProgress


class TrainUnit:
    """Base of Batch, Epoch, Record and Seconds."""

    noun: ClassVar[str] = ""

    def __init__(self, value: int | float | Collection[int | float]) -> None:
        self.value = value
        self._schedule = frozenset(value) if isinstance(value, Collection) else None
        for each in [value] if self._schedule is None else self._schedule:
            self._check(each)

    def _check(self, value: object) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UsageError(
                f"{self}: expected a whole number of {self.noun}, 1 or more",
                hint=f"{type(self).__name__}(10)",
                code="train-unit-not-positive",
            )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.value!r})"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and isinstance(other, TrainUnit) and self._key == other._key

    def __hash__(self) -> int:
        return hash((type(self), self._key))

    @property
    def _key(self) -> object:
        return self.value if self._schedule is None else self._schedule

    @property
    def is_schedule(self) -> bool:
        return self._schedule is not None

    @property
    def count(self) -> int | float:
        """The number of a length or period; a schedule has none."""
        assert isinstance(self.value, int | float)
        return self.value

    def of(self, progress: BatchProgress) -> float:
        """The progress, in this unit."""
        return float(getattr(progress, self.noun))

    def is_due(self, before: BatchProgress, after: BatchProgress) -> bool:
        """Whether a period ended, or a count of the schedule was reached, with the batch in between."""
        start, end = self.of(before), self.of(after)
        if self._schedule is not None:
            return any(start < count <= end for count in self._schedule)
        return start // self.count < end // self.count

    def is_reached(self, progress: BatchProgress) -> bool:
        """As a length."""
        return self.of(progress) >= self.count


class Batch(TrainUnit):
    """Global batches: steps of all workers together."""

    noun = "batches"


class Epoch(TrainUnit):
    noun = "epochs"


class Record(TrainUnit):
    """Samples of all workers together. Due with the first batch that reaches the count."""

    noun = "records"


class Seconds(TrainUnit):
    """Training time, by the clock of the slowest worker. Due with the first batch that ends after it."""

    noun = "seconds"

    def _check(self, value: object) -> None:
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise UsageError(f"{self}: expected a time above 0", hint="Seconds(60)", code="seconds-not-positive")


def check_unit(name: str, given: object, *, is_length: bool = False) -> TrainUnit:
    """A period or schedule; a length is one count."""
    if not isinstance(given, TrainUnit) or type(given) is TrainUnit or (is_length and given.is_schedule):
        counts = "one number" if is_length else "a number, or a collection of counts: Batch([2, 5])"
        code = "max-length-not-a-length" if is_length else "period-not-a-period"
        raise UsageError(f"{name}={given!r}", hint=f"give Batch, Epoch, Record or Seconds {counts}", code=code)
    return given
