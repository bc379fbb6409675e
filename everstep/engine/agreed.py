"""What all workers tell each other between two commits: numbered, so that a loss makes nobody miss or repeat an answer.

Whoever was brought to this step by a peer gets what was agreed on without it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from everstep.engine.group import Group


@dataclass(kw_only=True, slots=True)
class Agreed:
    """Since the last commit."""

    answers: list[list[Any]] = field(default_factory=list)  # what all said, by rank
    ranks: list[int] | None = None  # who asks until the next commit; None: all
    num_asked: int = 0  # how many of the answers the script has asked for

    def ask(self) -> int:
        """The number of the answer that is asked for now."""
        self.num_asked += 1
        return self.num_asked - 1

    def is_known(self, number: int) -> bool:
        return number < len(self.answers)

    def agree(self, value: Any, group: Group) -> None:
        """Add the next answer: the plain values of all who ask."""
        self.answers.append([json.loads(raw) for raw in group.gather(json.dumps(value).encode(), self.ranks)])


def weighted_mean(pairs: Iterable[Sequence[float]]) -> float:
    """Of (value, weight), in this order."""
    total = weights = 0.0
    for value, weight in pairs:
        total, weights = total + value * weight, weights + weight
    return total / weights if weights else float("nan")
