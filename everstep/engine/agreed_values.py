"""What all workers say to each other between two commits: by name, so that no worker misses or repeats an answer after
a loss.

A worker that was brought to this step by a peer gets the answers that were agreed on without it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from everstep.engine.group import Group
from everstep.errors import StateMismatch


@dataclass(kw_only=True, slots=True)
class Agreed:
    """Since the last commit."""

    answers: dict[str, list[Any]] = field(default_factory=dict)  # what all said, by rank
    ranks: list[int] | None = None  # those that ask until the next commit; None: all
    num_asked: int = 0  # without a name, since the last step of any kind
    num_passed: int = 0  # steps that did not count, since the last commit

    def name(self) -> str:
        """Of the answer that is asked for now, where the order of the questions is the same for all."""
        self.num_asked += 1
        return f"{self.num_passed}.{self.num_asked}"

    def passed(self) -> Agreed:
        """After a step that did not count: a newcomer has taken part in it, so it asks from now on, as all do."""
        return Agreed(num_passed=self.num_passed + 1)

    def agree(self, name: str, value: Any, group: Group) -> None:
        """Add an answer: the plain values of all that ask."""
        said = [json.loads(raw) for raw in group.gather(json.dumps([name, value]).encode(), self.ranks)]
        if others := {other for other, _ in said if other != name}:
            raise StateMismatch(
                f"this worker asks all others for {name!r}, one of them for {others.pop()!r}",
                hint="ask for the same values in the same order on all workers",
                code="questions-differ",
            )
        self.answers[name] = [value for _, value in said]


def weighted_mean(pairs: Iterable[Sequence[float]]) -> float:
    """Of (value, weight), in this order."""
    total = weights = 0.0
    for value, weight in pairs:
        total, weights = total + value * weight, weights + weight
    return total / weights if weights else float("nan")
