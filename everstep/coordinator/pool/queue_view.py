"""The queue of a pool as people see it: experiments with the slots that they hold and want, and why trials wait.

Pure. Positions and reasons are those of the latest decision."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from everstep import wire
from everstep.coordinator.experiments.facts import Experiment
from everstep.coordinator.experiments.seam import Candidate
from everstep.coordinator.pool.facts import QueuePlace, TrialKey
from everstep.wire.pool import MOST_QUEUED


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolStanding:
    """Where a pool's trials stand after the latest decision."""

    candidates: Sequence[Candidate]
    held: Mapping[TrialKey, int]  # slots
    queue: Sequence[QueuePlace]
    shares: Mapping[int, int]  # slots by experiment

    def oldest_wait_s(self, now: float) -> float:
        """The longest time that a trial in the queue has waited."""
        since = {(each.experiment, each.trial): each.queued_at for each in self.candidates}
        known = [at for each in self.queue if (at := since.get((each.experiment, each.trial), 0.0)) > 0.0]
        return max(0.0, now - min(known)) if known else 0.0


def queue_view(pool: str, experiments: Iterable[Experiment], standing: PoolStanding) -> wire.QueueView:
    """Experiments without waiting trials come first, by number; then those with waiting trials, in queue order."""
    candidates: dict[int, list[Candidate]] = defaultdict(list)
    for each in standing.candidates:
        candidates[each.experiment].append(each)
    places: dict[int, list[QueuePlace]] = defaultdict(list)
    for place in sorted(standing.queue, key=lambda each: each.position):
        places[place.experiment].append(place)
    held: dict[int, list[int]] = defaultdict(list)
    for (experiment, _), number in standing.held.items():
        held[experiment].append(number)
    entries = [
        _entry(facts, candidates[facts.number], places[facts.number], held[facts.number], standing.shares)
        for facts in experiments
        if facts.scheduling.pool == pool and (candidates[facts.number] or held[facts.number])
    ]
    entries.sort(key=lambda each: (each.position, each.experiment))
    return wire.QueueView(pool=pool, entries=entries, num_waiting=sum(each.num_waiting for each in entries))


def _entry(
    facts: Experiment,
    candidates: Sequence[Candidate],
    places: Sequence[QueuePlace],
    held: Sequence[int],
    shares: Mapping[int, int],
) -> wire.QueueEntry:
    first = places[0] if places else None
    return wire.QueueEntry(
        position=first.position if first else 0,
        experiment=facts.number,
        name=facts.name,
        state=facts.state,
        owner=facts.owner,
        priority=facts.scheduling.priority,
        weight=facts.scheduling.weight,
        num_running=sum(number > 0 for number in held),
        num_waiting=len(places),
        num_held=sum(held),
        num_wanted=sum(_wanted(each) for each in candidates),
        num_share=shares.get(facts.number, 0),
        reason=first.reason if first else "",
        waiting=[
            wire.QueuedTrial(trial=each.trial, position=each.position, reason=each.reason)
            for each in places[:MOST_QUEUED]
        ],
    )


def _wanted(candidate: Candidate) -> int:
    return 0 if candidate.is_waiting else candidate.max_slots


def with_owners(view: wire.PoolView, owners: Mapping[int, str]) -> wire.PoolView:
    """The view with the owners of experiments. `owners`: by experiment."""
    agents = [
        replace(agent, slots=[replace(slot, owner=owners.get(slot.experiment, "")) for slot in agent.slots])
        for agent in view.agents
    ]
    return replace(view, agents=agents)
