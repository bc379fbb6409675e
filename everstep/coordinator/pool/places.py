"""Free slots of machines, and which of them a trial gets: near the slots that it has, together on one node, and on the
node that is left with the fewest free ones, so that large gaps stay large."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush

from everstep.coordinator.pool.facts import Assignment, NodeFacts

Place = tuple[str, int]  # agent and slot


class FreeSlots:
    def __init__(self, free: Mapping[str, Sequence[int]], nodes: Mapping[str, NodeFacts]) -> None:
        self._free = {agent: sorted(slots, reverse=True) for agent, slots in free.items()}
        self._kinds = {agent: nodes[agent].kind for agent in free}
        self._of_kind: Counter[str] = Counter()
        self._with: dict[str, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))  # agents by free slots
        for agent in sorted(self._free):
            if num_free := len(self._free[agent]):
                self._of_kind[self._kinds[agent]] += num_free
                self._with[self._kinds[agent]][num_free].append(agent)
        for by_number in self._with.values():
            for agents in by_number.values():
                heapify(agents)

    def num_free(self, kind: str) -> int:
        return self._of_kind[kind] if kind else self._of_kind.total()

    def num_free_beside(self, kind: str, excluded: Collection[str]) -> int:
        """Those on other nodes."""
        there = [each for each in excluded if each in self._free and kind in ("", self._kinds[each])]
        return self.num_free(kind) - sum(len(self._free[each]) for each in there)

    def by_kind(self) -> Counter[str]:
        return Counter(self._of_kind)

    def take(
        self,
        kind: str,
        num_slots: int,
        held: Iterable[Assignment],
        spared: Mapping[str, int],
        excluded: Collection[str] = (),
    ) -> list[Place]:
        """At most this many free slots. Any kind: from the one with most left, without those that others wait for.
        None on nodes that are excluded."""
        if excluded:
            return self._take_beside(kind, num_slots, held, excluded)
        places: list[Place] = []
        for agent in sorted({each.agent for each in held}):
            if agent in self._free and (not kind or self._kinds[agent] == kind):
                places += self._take_on(agent, num_slots - len(places))
        kinds = (
            [kind] if kind else sorted(self._with, key=lambda each: (spared.get(each, 0) - self._of_kind[each], each))
        )
        for each in kinds:
            while len(places) < num_slots and self._of_kind[each]:
                places += self._take_on(self._best(each, num_slots - len(places)), num_slots - len(places))
        return places

    def _take_beside(
        self, kind: str, num_slots: int, held: Iterable[Assignment], excluded: Collection[str]
    ) -> list[Place]:
        """Nodes of the trial first, then those on which most fit. Seldom needed, so it looks at all nodes."""
        own = {each.agent for each in held}
        usable = [each for each in self._free if each not in excluded and kind in ("", self._kinds[each])]
        usable.sort(key=lambda each: (each not in own, -min(len(self._free[each]), num_slots), each))
        places: list[Place] = []
        for agent in usable:
            places += self._take_on(agent, num_slots - len(places))
        return places

    def _best(self, kind: str, num_slots: int) -> str:
        """The node with the fewest free slots on which all fit, or else the one on which most fit."""
        by_number = self._with[kind]
        while True:
            fitting = [number for number in by_number if number >= num_slots]
            number = min(fitting) if fitting else max(by_number)
            agents = by_number[number]
            while agents and len(self._free[agents[0]]) != number:
                heappop(agents)  # it has fewer now, and is listed there
            if agents:
                return agents[0]
            del by_number[number]

    def _take_on(self, agent: str, num_slots: int) -> list[Place]:
        slots = self._free[agent]
        taken = [slots.pop() for _ in range(min(num_slots, len(slots)))]
        self._of_kind[self._kinds[agent]] -= len(taken)
        if taken and slots:
            heappush(self._with[self._kinds[agent]][len(slots)], agent)
        return [(agent, slot) for slot in taken]


def first_to_leave(held: Sequence[Assignment]) -> list[Assignment]:
    """Those on nodes with the fewest of this trial's slots, and among these the newest."""
    on_node = Counter(each.agent for each in held)
    return sorted(held, key=lambda each: (on_node[each.agent], each.agent, -each.number))
