"""The most slots of an experiment, its max_slots, and of a person, the quota. A slot counts until it is free again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import inf

from everstep.coordinator.experiments.seam import Candidate
from everstep.coordinator.pool.claims import Claims

Name = int | str  # an experiment, or a person


class SlotLimits:
    def __init__(self, claims: Claims) -> None:
        self._claims, self._taken = claims, Counter(claims.taken)
        self._of: dict[int, dict[Name, int]] = {}  # by experiment

    def of(self, candidate: Candidate) -> Mapping[Name, int]:
        """The limits of its experiment and its person; empty if neither has one."""
        found = self._of.get(candidate.experiment)
        if found is None:
            quota, most = self._claims.person(candidate.person).quota, candidate.experiment_max_slots
            found = self._of[candidate.experiment] = {candidate.experiment: most} if most else {}
            if quota is not None:
                found[candidate.person] = quota
        return found

    def room(self, candidate: Candidate) -> float:
        """Slots that its experiment and its person may still get."""
        return min((limit - self._taken[name] for name, limit in self.of(candidate).items()), default=inf)

    def take(self, candidate: Candidate, number: int) -> None:
        for name in self.of(candidate):
            self._taken[name] += number

    def missing(self, candidate: Candidate, number: int) -> Counter[Name]:
        """The limits that leave no room for this number of slots."""
        return Counter({name: number for name, most in self.of(candidate).items() if most - self._taken[name] < number})
