"""Why a halving search continues with these trials: who was compared at each rung, by which numbers, and what followed.

Values only. Each searcher explains itself from its state (`Method.explain`); nothing is decided here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# What a rung has meant for a trial so far.
PROMOTED = "promoted"  # it continues to the next rung
CUT = "cut"  # others were better
REACHED = "finished"  # it has a result at the full length
UNDECIDED = "undecided"  # it has its result, and waits for the results of others
ON_ITS_WAY = "on its way"  # it has no result here yet
FELL = "failed"  # it ended before it had one


@dataclass(frozen=True, kw_only=True, slots=True)
class RungMember:
    """`place`: where its result stood when it was compared with `compared` trials, itself included; 0: it was not."""

    trial: int
    metric: float | None  # None: no result, or one that is not finite
    outcome: str
    place: int = 0
    compared: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class ExplainedRung:
    """`quota`: how many of its trials continue, as far as is known; 0 at the full length. `members`: the best first,
    then those without a result by number."""

    length: int
    quota: int
    is_decided: bool
    members: Sequence[RungMember]


@dataclass(frozen=True, kw_only=True, slots=True)
class ExplainedCohort:
    """Only the rungs that trials have come to."""

    bracket: int
    cohort: int
    num_trials: int
    rungs: Sequence[ExplainedRung]
