"""What a pool remembers besides its assignments, for its decisions: how quickly trials train, who has used slots
lately, when trials were resized, and since when assignments are being parked. Only in memory: a coordinator that starts
again learns it again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from everstep.coordinator.experiments.seam import Candidate
from everstep.coordinator.pool.facts import PARKING, Assignment, NodeFacts, PoolFacts, TrialKey
from everstep.coordinator.pool.measured_speeds import TrialSpeeds
from everstep.coordinator.pool.people import People
from everstep.coordinator.pool.recent_use import RecentUse


class PoolMemory:
    def __init__(self) -> None:
        self.speeds = TrialSpeeds()
        self._by_person: RecentUse[str] = RecentUse()
        self._by_experiment: RecentUse[int] = RecentUse()
        self._resized_at: dict[TrialKey, float] = {}
        self._parking_since: dict[int, float] = {}
        self._owners: dict[int, str] = {}  # of experiments that hold slots

    def note_given(self, given: Assignment, now: float, *, is_growth: bool) -> None:
        self.speeds.note_order(given.number, now)
        if is_growth:
            self._resized_at[given.key] = now

    def note_shrunk(self, key: TrialKey, now: float) -> None:
        self._resized_at[key] = now

    def look(self, candidates: Iterable[Candidate], live: Collection[Assignment], now: float) -> None:
        """Look at all pools, before they decide."""
        self._note_use(candidates, live, now)
        parking = [each.number for each in live if each.state == PARKING]
        self._parking_since = {number: self._parking_since.get(number, now) for number in parking}

    def facts(
        self,
        pool: str,
        candidates: Iterable[Candidate],
        nodes: Sequence[NodeFacts],
        live: Iterable[Assignment],
        kinds: Collection[str],
        now: float,
        *,
        people: People,
        most_slots: int | None,
        is_complete: bool,
    ) -> PoolFacts:
        """The facts of one pool. `kinds`: of the machines that are present. Once no machine of a kind is left, its
        trials continue on other kinds, and say so."""
        ours = [each for each in candidates if each.pool == pool]
        return PoolFacts(
            now=now,
            pool=pool,
            people=people,
            most_slots=most_slots,
            is_complete=is_complete,
            candidates=[each if each.kind in kinds or not each.kind else replace(each, kind="") for each in ours],
            nodes=nodes,
            assignments=[each for each in live if each.pool == pool],
            speeds=self.speeds.told,
            used_by_person=self._by_person.used(now),
            used_by_experiment=self._by_experiment.used(now),
            owners=self._owners,
            resized_at=self._resized_at,
            parking_since=self._parking_since,
        )

    def _note_use(self, candidates: Iterable[Candidate], live: Collection[Assignment], now: float) -> None:
        held = Counter(each.experiment for each in live)
        known = self._owners | {each.experiment: each.person for each in candidates}
        self._owners = {experiment: known.get(experiment, "") for experiment in held}
        by_person: Counter[str] = Counter()
        for experiment, slots in held.items():
            by_person[self._owners[experiment]] += slots
        self._by_experiment.note(held, now)
        self._by_person.note(by_person, now)

    def keep(self, held: Mapping[TrialKey, Collection[int]]) -> None:
        """Forget the trials that hold nothing."""
        self.speeds.keep(held)
        self._resized_at = {key: at for key, at in self._resized_at.items() if key in held}
