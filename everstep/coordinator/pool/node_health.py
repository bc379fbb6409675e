"""Whether a node is set aside because trials keep failing there. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

NUM_EXPERIMENTS = 3
MOST_ENDS = 100  # of a node that are remembered


@dataclass(frozen=True, kw_only=True, slots=True)
class SeenEnd:
    """How an assignment ended on the node."""

    experiment: int
    trial: int
    exit_code: int
    was_asked: bool  # to end: it says nothing about the node
    reason: str = ""

    @property
    def is_failure(self) -> bool:
        return self.exit_code != 0 and not self.was_asked


def decide_set_aside(ends: Sequence[SeenEnd], failed_elsewhere: Collection[int] = ()) -> str:
    """Why this node is set aside; "" if it is not. `ends`: the oldest first. `failed_elsewhere`: experiments that fail
    on other nodes too, so it is not this node."""
    told = [each for each in ends if not each.was_asked]
    last_good = max((index for index, each in enumerate(told) if not each.is_failure), default=-1)
    failures = {each.experiment: each for each in told[last_good + 1 :] if each.experiment not in failed_elsewhere}
    if len(failures) < NUM_EXPERIMENTS:
        return ""
    names = ", ".join(f"e{each.experiment}-t{each.trial}" for each in failures.values())
    last = next(reversed(failures.values()))
    because = f"; the last one: {last.reason}" if last.reason else ""
    return (
        f"trials of {len(failures)} experiments failed here in a row ({names}), and none has succeeded since{because}"
    )
