"""Values that all workers agree on between two commits: numbered, so that a loss makes nobody miss or repeat one.

Whoever was brought to this step by a peer gets what was agreed on without it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from everstep.engine.group import Group


@dataclass(kw_only=True, slots=True)
class Agreed:
    """Since the last commit."""

    values: list[float] = field(default_factory=list)
    ranks: list[int] | None = None  # who asks for values until the next commit; None: all
    num_asked: int = 0  # how many of the values the script has asked for

    def ask(self) -> int:
        """The number of the value that is asked for now."""
        self.num_asked += 1
        return self.num_asked - 1

    def is_known(self, number: int) -> bool:
        return number < len(self.values)

    def agree(self, value: float, weight: float, group: Group) -> None:
        """Add the next value, the weighted mean over all who ask."""
        pairs = [json.loads(raw) for raw in group.gather(json.dumps([value, weight]).encode(), self.ranks)]
        total = sum(weight for _, weight in pairs)
        self.values.append(sum(value * weight for value, weight in pairs) / total if total else float("nan"))
