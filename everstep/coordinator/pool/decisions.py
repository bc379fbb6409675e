"""Which trial gets which slot, and which one has to give its slot back.

Pure: facts in, a decision with reasons out; time comes in as an argument. Knows neither HTTP nor the database."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from everstep.coordinator.experiments.seam import Candidate

GIVEN, PARKING, KILLING = "given", "parking", "killing"  # the slot is taken
ENDED, LOST = "ended", "lost"  # the slot is free
LIVE = (GIVEN, PARKING, KILLING)

LINGER_S = 0.2  # a trial that waits for the search keeps a slot that others want for this long


@dataclass(frozen=True, kw_only=True, slots=True)
class Assignment:
    """A slot, given to a trial."""

    number: int  # never used again
    pool: str
    agent: str
    slot: int
    experiment: int
    trial: int
    state: str
    reason: str
    began_at: float  # time of day
    ended_at: float | None = None

    @property
    def is_live(self) -> bool:
        return self.state in LIVE

    @property
    def key(self) -> tuple[int, int]:
        return (self.experiment, self.trial)


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentSlots:
    agent: str
    num_slots: int
    is_open: bool  # it is there, and runs nothing that it should not


@dataclass(frozen=True, kw_only=True, slots=True)
class Grant:
    candidate: Candidate
    agent: str
    slot: int
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Parking:
    number: int  # of the assignment
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotDecision:
    give: tuple[Grant, ...] = ()
    park: tuple[Parking, ...] = ()
    look_at: float | None = None  # when time alone may change it


def decide_assignments(
    candidates: Sequence[Candidate], agents: Sequence[AgentSlots], assignments: Iterable[Assignment], now: float
) -> SlotDecision:
    """Trials in the order of their ranks; those that have a slot keep it. A trial that waits for the search is parked
    only if another one wants its slot, the last in rank first."""
    live = [each for each in assignments if each.is_live]
    wanting = in_queue(candidates, live)
    free = _free_slots(agents, live)
    give = tuple(
        Grant(candidate=candidate, agent=agent, slot=slot, reason=f"slot {slot} of {agent} is free")
        for candidate, (agent, slot) in zip(wanting, free, strict=False)
    )
    num_coming = sum(each.state in (PARKING, KILLING) for each in live)
    num_short = len(wanting) - len(give) - num_coming
    if num_short <= 0:
        return SlotDecision(give=give)
    park, look_at = _parkings(candidates, live, num_short, now)
    return SlotDecision(give=give, park=park, look_at=look_at)


def in_queue(candidates: Iterable[Candidate], live: Iterable[Assignment]) -> list[Candidate]:
    """Those that want a slot and have none, the first one first."""
    held = {each.key for each in live}
    found = {(each.experiment, each.trial): each for each in candidates if not each.is_waiting}
    return sorted(
        (each for key, each in found.items() if key not in held),
        key=lambda each: (each.rank, each.experiment, each.trial),
    )


def _free_slots(agents: Sequence[AgentSlots], live: Sequence[Assignment]) -> list[tuple[str, int]]:
    """One slot of each agent in turn, from the agent with the most free slots on: work spreads over machines."""
    taken = {(each.agent, each.slot) for each in live}
    free = {
        each.agent: [slot for slot in range(each.num_slots) if (each.agent, slot) not in taken]
        for each in agents
        if each.is_open
    }
    order = [(-len(slots) + place, agent, slot) for agent, slots in free.items() for place, slot in enumerate(slots)]
    return [(agent, slot) for _, agent, slot in sorted(order)]


def _parkings(
    candidates: Sequence[Candidate], live: Sequence[Assignment], num_short: int, now: float
) -> tuple[tuple[Parking, ...], float | None]:
    waiting = {(each.experiment, each.trial): each for each in candidates if each.is_waiting}
    held = [(waiting[each.key], each) for each in live if each.state == GIVEN and each.key in waiting]
    held.sort(key=lambda pair: (pair[0].rank, pair[1].number), reverse=True)
    due = [pair for pair in held if pair[0].waiting_since + LINGER_S <= now][:num_short]
    park = tuple(
        Parking(number=each.number, reason="it waits for the search, and another trial wants its slot")
        for _, each in due
    )
    later = [candidate.waiting_since + LINGER_S for candidate, _ in held if candidate.waiting_since + LINGER_S > now]
    return park, min(later) if later and len(park) < num_short else None
