"""Decides for all pools of a coordinator, and keeps what their next decisions and their views need.

Only memory: `Pool` carries the decisions out, and stores them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from everstep import wire
from everstep.coordinator.experiments.seam import Candidate, TrialPace
from everstep.coordinator.pool.agents import KnownAgent
from everstep.coordinator.pool.decisions import decide_pool
from everstep.coordinator.pool.facts import Assignment, PoolDecision, PoolFacts, QueuePlace, TrialKey
from everstep.coordinator.pool.order import find_impossible
from everstep.coordinator.pool.people import People
from everstep.coordinator.pool.pool_measures import PoolMeasures
from everstep.coordinator.pool.pool_memory import PoolMemory
from everstep.wire.pool import DEFAULT_POOL


class PoolDecider:
    def __init__(self, people: People, most_slots: Callable[[str], int]) -> None:
        self.people, self._most_slots = people, most_slots
        self.memory, self.measures = PoolMemory(), PoolMeasures()
        self.why_queued: Mapping[TrialKey, str] = {}
        self.look_at: float | None = None  # when time alone may change a decision
        self._decisions: Mapping[str, PoolDecision] = {}  # the latest, by pool

    def decide(
        self,
        candidates: Sequence[Candidate],
        agents: Collection[KnownAgent],
        kept: Mapping[int, Assignment],
        live: Mapping[int, Assignment],
        now: float,
    ) -> Mapping[str, PoolDecision]:
        self.memory.look(candidates, live.values(), now)
        pools = {DEFAULT_POOL, *(each.pool for each in agents), *(each.pool for each in candidates)}
        decisions = {}
        for pool in sorted(pools):
            facts = self._facts(pool, candidates, [each for each in agents if each.pool == pool], kept, live, now)
            with self.measures.deciding():
                decisions[pool] = decide_pool(facts)
            self.measures.note(pool, decisions[pool], live)
        self._decisions = decisions
        self.why_queued = {
            (place.experiment, place.trial): place.reason for each in decisions.values() for place in each.queue
        }
        self.look_at = min((each.look_at for each in decisions.values() if each.look_at is not None), default=None)
        return decisions

    def why_never(
        self, candidate: Candidate, agents: Iterable[KnownAgent], kept: Mapping[int, Assignment], now: float
    ) -> str | None:
        its = [each for each in agents if each.pool == candidate.pool]
        found = find_impossible(self._facts(candidate.pool, [candidate], its, kept, {}, now))
        return found[0].reason if found else None

    def queue(self, pool: str) -> Sequence[QueuePlace]:
        decision = self._decisions.get(pool)
        return decision.queue if decision is not None else ()

    def shares(self, pool: str) -> Mapping[int, int]:
        """The slots that each experiment should have."""
        decision = self._decisions.get(pool)
        return decision.shares if decision is not None else {}

    def num_wanted(self, pool: str) -> int:
        """Slots that the pool's trials could use now."""
        decision = self._decisions.get(pool)
        return decision.num_wanted if decision is not None else 0

    def measure(
        self,
        held: Mapping[TrialKey, Collection[int]],
        live: Mapping[int, Assignment],
        progress: Callable[[int, int], TrialPace | None],
    ) -> bool:
        """Measure how fast trials train now. True: the decisions may change."""
        speeds = self.memory.speeds
        num_known = speeds.num_known
        for key, numbers in held.items():
            nodes = {number: wire.trial_node(live[number].agent, number) for number in numbers}
            speeds.note(key, progress(*key), nodes)
        self.memory.keep(held)
        return speeds.num_known != num_known

    def _facts(
        self,
        pool: str,
        candidates: Iterable[Candidate],
        agents: Collection[KnownAgent],
        kept: Mapping[int, Assignment],
        live: Mapping[int, Assignment],
        now: float,
    ) -> PoolFacts:
        present = [each for each in agents if not each.is_lost]
        unheard = {each.agent for each in present if not each.is_heard}  # since this coordinator has started
        most = self._most_slots(pool)
        return self.memory.facts(
            pool,
            candidates,
            [each.node(kept, now) for each in agents],
            live.values(),
            {each.kind for each in present},
            now,
            people=self.people,
            most_slots=max(most, sum(each.num_slots for each in present)) if most else None,
            is_complete=not (unheard and any(each.pool == pool and each.agent in unheard for each in live.values())),
        )
