"""Compares a trial with its second training, by digests of weights at each validation and checkpoint. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from everstep import wire

VALIDATION, CHECKPOINT = "validation", "checkpoint"


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """One point of a training. Without digests, metrics are compared. None: the point is missing."""

    what: str
    length: int  # of a validation, in the search's unit; of a checkpoint, in batches
    kept: str | None
    again: str | None

    @property
    def is_equal(self) -> bool | None:
        """None: there is nothing to compare with."""
        if self.what == CHECKPOINT and (not self.kept or not self.again):  # saved because the trial was asked to leave
            return None
        return self.kept == self.again


def compare(
    kept: Sequence[wire.TrialResult],
    again: Sequence[wire.TrialResult],
    kept_saved: Iterable[wire.SavedCheckpoint] = (),
    again_saved: Iterable[wire.SavedCheckpoint] = (),
) -> list[Compared]:
    """In the order of training."""
    rows = [*_validations(kept, again), *_checkpoints(kept_saved, again_saved)]
    batches = {(VALIDATION, each.length): each.batches or each.length for each in (*again, *kept)}
    return sorted(rows, key=lambda row: (batches.get((row.what, row.length), row.length), row.what == CHECKPOINT))


def _validations(kept: Sequence[wire.TrialResult], again: Sequence[wire.TrialResult]) -> Iterator[Compared]:
    first, second = ({each.length: each for each in results} for results in (kept, again))
    for length in sorted(first.keys() | second.keys()):
        one, two = first.get(length), second.get(length)
        has_digests = all(each is None or each.digest for each in (one, two))
        texts = (None if each is None else each.digest if has_digests else repr(each.metric) for each in (one, two))
        yield Compared(what=VALIDATION, length=length, kept=next(texts), again=next(texts))


def _checkpoints(kept: Iterable[wire.SavedCheckpoint], again: Iterable[wire.SavedCheckpoint]) -> Iterator[Compared]:
    first, second = _digests(kept), _digests(again)
    for step in sorted(first):
        yield Compared(what=CHECKPOINT, length=step, kept=first[step], again=second.get(step))


def _digests(saved: Iterable[wire.SavedCheckpoint]) -> Mapping[int, str]:
    return {each.step: each.digest for each in saved if each.digest}


def first_difference(rows: Iterable[Compared]) -> Compared | None:
    return next((row for row in rows if row.is_equal is False), None)


def kinds_note(kind: str, kinds: Iterable[str]) -> str:
    """A warning if this pool's machines are of another kind than the trial's; "" if they are the same."""
    here = sorted(set(kinds))
    if not kind or here == [kind]:
        return ""
    return f"the trial was trained on {kind}, but this pool has {' and '.join(here)}: expect different bits"
