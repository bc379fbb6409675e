"""Decide who may leave, and when the job is over.

A worker that leaves takes its copy of the state along. So it is released only when all members leave, or when the
generation that continues without it has settled: each of its members holds the state itself.
Pure: facts in, a value with its reason out."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from everstep.coordinator.roster.facts import DEAD, LEFT, Decision, Roster, by_seniority, listed


@dataclass(frozen=True, kw_only=True, slots=True)
class LeavingDecision(Decision):
    released: tuple[str, ...] = ()
    are_sent: bool = False  # all members go because they were asked to: the job is not over


@dataclass(frozen=True, kw_only=True, slots=True)
class End(Decision):
    is_finished: bool = False
    is_stopped: bool = False


def decide_leaving(roster: Roster) -> LeavingDecision:
    if not roster.wishes:
        return LeavingDecision("no-one-leaves", "no worker wants to leave")
    if _all_wish(roster):
        released = tuple(roster.wishes)
        if _all_asked(roster):
            return LeavingDecision(
                "all-asked-to-leave", "all members were asked to go", released=released, are_sent=True
            )
        return LeavingDecision("all-leave", "all members leave together", released=released)
    outside = [name for name in roster.wishes if not (roster.generation.is_open and roster.is_member(name))]
    if _is_settled(roster):
        return LeavingDecision(
            "others-hold-the-state",
            f"released: generation {roster.generation.number} holds the state without it",
            released=tuple(outside),
        )
    empty_handed = [name for name in outside if _holds_nothing(roster, name)]
    return LeavingDecision("holds-no-state", "released: it holds no state", released=tuple(empty_handed))


def decide_end(roster: Roster) -> End:
    """The job ends well when all leave together or have ended, badly when one micro-batch kills worker after worker.
    If all were asked to go it is not over: others may come."""
    if roster.is_over:
        return End("already-over", roster.reason)
    if _all_wish(roster) and not _all_asked(roster):
        members = roster.generation.ranks
        step = max(wish.step for wish in roster.wishes.values())
        who = f"all {len(members)} members left together" if len(members) > 1 else "the only member left"
        return End("all-left", f"{who} at step {step}", is_finished=True)
    if deadly := _deadly_micro_batch(roster):
        return End("deadly-micro-batch", deadly, is_stopped=True)
    if _all_ended(roster):
        return End("all-ended", "all workers ended in good order", is_finished=True)
    return End("continues", "the job continues")


def _all_wish(roster: Roster) -> bool:
    """Whether every member of the open generation wants to leave it."""
    number, members = roster.generation.number, roster.generation.ranks
    if not roster.generation.is_open or not members.keys() <= roster.wishes.keys():
        return False
    return all(roster.wishes[name].generation == number for name in members)


def _all_asked(roster: Roster) -> bool:
    """Whether none of them would have left by itself: a preemption of the whole job."""
    return all(roster.wishes[name].is_asked for name in roster.generation.ranks)


def _holds_nothing(roster: Roster, name: str) -> bool:
    wish = roster.wishes[name]
    return wish.generation == 0 or (roster.workers[name].settled == 0 and wish.step == 0)


def _is_settled(roster: Roster) -> bool:
    generation, workers = roster.generation, roster.workers
    return generation.is_open and all(workers[name].settled == generation.number for name in generation.ranks)


def _deadly_micro_batch(roster: Roster) -> str | None:
    deaths: dict[tuple[int, int], list[str]] = defaultdict(list)
    for worker in roster.workers.values():
        if worker.status == DEAD and worker.micro_batch >= 0:
            deaths[worker.step, worker.micro_batch].append(worker.worker)
    for (step, micro_batch), names in deaths.items():
        if len(names) >= roster.policy.micro_batch_deaths:
            killed = listed(by_seniority(roster, names))
            return f"micro-batch {micro_batch} of step {step} killed {killed}: its samples would kill the next one too"
    return None


def _all_ended(roster: Roster) -> bool:
    """Whether all members of the latest generation ended well; without generations, all workers of the attempt."""
    started = [name for part in roster.attempt.parts for name in part.workers] if roster.attempt.is_open else []
    concerned = roster.generation.ranks or started or ([] if roster.attempt.parts else roster.workers)
    return bool(concerned) and all(roster.workers[name].status == LEFT for name in concerned)
