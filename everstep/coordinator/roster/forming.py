"""Decide when the next generation is formed, and by whom.

Two promises. Never two histories: a member of the last generation is present, or all of it must have stopped. And
the state is not dropped while any worker may still hold it: a generation continues from the newest state that any
worker settled in, and starts over only when all that held it are gone for certain. A fresh start is led by processes
that were started after the loss: their scripts have loaded the newest checkpoint. All others may have loaded an older
one, and are started again.
Pure: facts and `now` in, a value with its reason out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from everstep.coordinator.roster.facts import (
    ALIVE,
    DEAD,
    LOST,
    Decision,
    Generation,
    Roster,
    Sign,
    by_seniority,
    listed,
)
from everstep.coordinator.roster.reachability import largest_mutual
from everstep.wire import COMPUTING, Member

LAST_CALL_S = 30.0  # a worker that stops by itself may be in the middle of a call when its deadline comes


@dataclass(frozen=True, kw_only=True, slots=True)
class Forming(Decision):
    lost: tuple[str, ...] = ()  # did not arrive in time
    breaks: bool = False  # the generation was closed in good order, but not all come: it is broken for all
    recalled: tuple[str, ...] = ()  # want to leave, but hold the newest state
    is_state_lost: bool = False  # all that held it are gone: workers that are present must be restarted
    formed: Generation | None = None


def decide_generation(roster: Roster, signs: Mapping[str, Sign], now: float) -> Forming:
    generation = roster.generation
    if roster.is_over:
        return Forming("over", f"the job is over: {roster.reason}")
    if generation.is_open:
        return Forming("open", generation.reason)
    if generation.number == 0:
        return _decide_first(roster, now)
    return _decide_missing(roster, signs, now) or _decide_recall(roster) or _decide_next(roster, now)


def _decide_first(roster: Roster, now: float) -> Forming:
    policy, num_arrived = roster.policy, len(roster.arrivals)
    if not num_arrived:
        return Forming("none-arrived", "no worker has arrived yet")
    start_workers = min(policy.start_workers, _max_workers(roster) or policy.start_workers)
    deadline = min(arrival.since for arrival in roster.arrivals.values()) + policy.start_s
    if num_arrived < start_workers and now < deadline:
        return Forming(
            "waits-for-start",
            f"{num_arrived} of {start_workers} workers arrived; waiting at most {policy.start_s:.1f} s for more",
            next_look=deadline,
        )
    return _form(roster)


# --- who is still awaited ---


def _decide_missing(roster: Roster, signs: Mapping[str, Sign], now: float) -> Forming | None:
    """Wait for the live members of the closed generation, up to a deadline."""
    deadlines = _awaited(roster, signs)
    if not deadlines:
        return None
    if min(deadlines.values()) <= now and not roster.generation.is_broken:
        # Members come by themselves after a closing in good order, without an order. Before a worker is declared lost:
        slow = by_seniority(roster, (name for name, deadline in deadlines.items() if deadline <= now))
        return Forming("breaks", f"{listed(slow)} did not come with the others after the last step", breaks=True)
    return _wait_or_lose(roster, deadlines, now, "for the next generation")


def _awaited(roster: Roster, signs: Mapping[str, Sign]) -> dict[str, float]:
    """Each one that is missing, with its deadline. Who wants to leave is not awaited unless it was called back."""
    generation, policy = roster.generation, roster.policy
    deadlines = {}
    for name in generation.ranks.keys() - roster.arrivals.keys() - roster.wishes.keys() - roster.recalled.keys():
        if roster.is_alive(name) and roster.is_member(name):
            deadlines[name] = max(roster.closed_at + policy.arrive_s, _busy_until(roster, signs.get(name)))
    for name, since in roster.recalled.items():
        deadlines[name] = since + policy.arrive_s
    return deadlines


def _busy_until(roster: Roster, sign: Sign | None) -> float:
    """A worker inside a micro-batch cannot arrive before its end: it gets as long as the rule for hanging gives it."""
    if sign is None or sign.phase != COMPUTING:
        return 0.0
    return sign.phase_since + max(roster.policy.hang_s, 10 * sign.longest_step_s)


def _wait_or_lose(roster: Roster, deadlines: Mapping[str, float], now: float, what: str) -> Forming:
    late = tuple(by_seniority(roster, (name for name, deadline in deadlines.items() if deadline <= now)))
    if late:
        return Forming("late", f"{listed(late)} did not arrive in time {what}", lost=late)
    missing = by_seniority(roster, deadlines)
    return Forming(
        "waits-for-members",
        f"{len(roster.arrivals)} arrived; waiting for {listed(missing)} {what}",
        next_look=min(deadlines.values()),
    )


# --- who holds the state ---


def _decide_recall(roster: Roster) -> Forming | None:
    """A leaver that is ahead of all who arrived is called back, to hand its state over."""
    best = max(((arrival.settled, arrival.step) for arrival in roster.arrivals.values()), default=(-1, -1))
    ahead = tuple(name for name, wish in roster.wishes.items() if (roster.workers[name].settled, wish.step) > best)
    if not ahead:
        return _decide_needed(roster)
    return Forming(
        "recalls", f"{listed(by_seniority(roster, ahead))} wants to leave but holds the newest state", recalled=ahead
    )


def _decide_needed(roster: Roster) -> Forming | None:
    """If all workers are asked to go at the end of a step, some hear it before and wish to leave, and the others wait
    for the next generation. If these are too few for one, all take a further step together, and then all have heard."""
    asked = tuple(name for name, wish in roster.wishes.items() if wish.is_asked and roster.is_member(name))
    num_here, least = len(roster.arrivals), roster.policy.min_workers
    if not (num_here < least <= num_here + len(asked)):
        return None
    who = listed(by_seniority(roster, asked))
    return Forming("recalls", f"{who} wants to leave, and the others are less than {least} without it", recalled=asked)


def _decide_next(roster: Roster, now: float) -> Forming:
    generation, newest = roster.generation, _newest(roster)
    if max((arrival.settled for arrival in roster.arrivals.values()), default=-1) >= newest:
        return _form(roster)
    if not generation.is_lost:
        gone = f"started before all who held the state of generation {newest} were lost"
        return _decide_holders(roster, newest, now) or Forming("state-lost", gone, is_state_lost=True)
    if not roster.arrivals:
        return Forming("waits-for-workers", f"no worker is left of generation {generation.number}; waiting for workers")
    return _form(roster, alarm=f"NO LIVE WORKER HOLDS THE STATE of generation {newest}, starting over: ")


def _newest(roster: Roster) -> int:
    """The generation whose state is the newest that can exist.

    No member steps in a generation before all of them hold the state. So if one of them is present and never
    did, what the others brought along is still the newest; so it is if all of them died before they did a step. Else
    it may have stepped, and they may be behind."""
    generation = roster.generation
    unsettled = [name for name in generation.ranks if roster.workers[name].held < generation.number]
    if any(name in roster.arrivals and roster.is_member(name) for name in unsettled):
        return generation.continues
    brought = [each.step for each in roster.arrivals.values() if each.settled >= max(generation.continues, 1)]
    members = [roster.workers[name] for name in generation.ranks]
    is_nothing_newer = all(each.status == DEAD and each.step <= max(brought, default=-1) for each in members)
    return generation.continues if len(unsettled) == len(members) and is_nothing_newer else generation.number


def _decide_holders(roster: Roster, newest: int, now: float) -> Forming | None:
    """No worker here holds the state: wait for those that may, the living until their deadline, the lost until
    fenced."""
    holders = [each for each in roster.workers.values() if each.settled >= newest]
    deadline = roster.closed_at + roster.policy.arrive_s
    missing = {each.worker: deadline for each in holders if each.status == ALIVE and each.worker not in roster.arrivals}
    if missing:
        return _wait_or_lose(roster, missing, now, "with the newest state")
    # Any of the lost may hold it without having reported it. And if no member is present, they may even be
    # stepping on without us: since all of them are waited for, there are never two histories.
    lost = [each.worker for each in roster.workers.values() if each.status == LOST and not each.is_stale]
    return _wait_for_fence(roster, lost, now, f"may hold the state of generation {newest}, or be stepping on")


def _wait_for_fence(roster: Roster, lost: list[str], now: float, what: str) -> Forming | None:
    """Wait until each of those that are lost has either been confirmed dead or has stopped by itself."""
    fence_s = roster.policy.fence_s + LAST_CALL_S
    deadlines = {name: roster.lost_at[name] + fence_s for name in lost}
    unfenced = [name for name, deadline in deadlines.items() if deadline > now]
    if not unfenced:
        return None
    return Forming(
        "waits-for-fence",
        f"{listed(by_seniority(roster, unfenced))} cannot be heard and {what}; "
        f"waiting for its death or {fence_s:.1f} s",
        next_look=max(deadlines.values()),
    )


# --- the choice ---


def _form(roster: Roster, *, alarm: str = "") -> Forming:
    """The largest set whose members reach each other and that holds the newest state there is."""
    arrivals = roster.arrivals
    candidates = by_seniority(roster, arrivals)
    best = max(arrival.settled for arrival in arrivals.values())
    mutual = largest_mutual(
        candidates,
        {name: arrivals[name].unreachable for name in candidates if arrivals[name].unreachable},
        {name for name in candidates if arrivals[name].settled == best},
    )
    max_workers = _max_workers(roster)
    chosen = _within(roster, [name for name in candidates if name in mutual], max_workers)
    chosen.sort(key=lambda name: arrivals[name].settled == 0)  # of each node, newcomers have the last ranks
    if len(chosen) < roster.policy.min_workers:
        return Forming(
            "too-few-workers",
            f"{len(chosen)} workers can form a generation; waiting for at least {roster.policy.min_workers}",
        )
    num_nodes, min_nodes = len({roster.workers[name].agent for name in chosen}), _min_nodes(roster)
    if num_nodes < min_nodes:
        nodes = f"{num_nodes} node{'s' * (num_nodes != 1)}"
        return Forming(
            "too-few-nodes", f"workers of {nodes} can form a generation; waiting for at least {min_nodes} nodes"
        )
    left_out = {
        name: f"{name} cannot reach, or be reached by, all of generation {roster.generation.number + 1}"
        for name in candidates
        if name not in mutual
    }
    continues = max(arrivals[name].settled for name in chosen)
    generation = _generation(roster, chosen, continues, max_workers, left_out, alarm)
    return Forming("formed", generation.reason, formed=generation)


def _within(roster: Roster, candidates: list[str], max_workers: int | None) -> list[str]:
    """At most `max_workers`, by seniority: the most advanced first of all, then survivors, then newcomers."""
    if max_workers is None or len(candidates) <= max_workers:
        return candidates
    arrivals = roster.arrivals
    first = max(candidates, key=lambda name: (arrivals[name].settled, arrivals[name].step, roster.is_member(name)))
    # Sorting is stable, so that seniority decides among equals.
    preferred = sorted(candidates, key=lambda name: (name != first, not roster.is_member(name)))
    return by_seniority(roster, preferred[:max_workers])


def _generation(
    roster: Roster, chosen: list[str], continues: int, max_workers: int | None, left_out: dict[str, str], alarm: str
) -> Generation:
    number = roster.generation.number + 1
    workers = [roster.workers[name] for name in chosen]
    members = tuple(
        Member(worker=each.worker, rank=rank, address=each.address, probe_port=each.probe_port)
        for rank, each in enumerate(workers)
    )
    num_new = sum(1 for name in chosen if not roster.is_member(name))
    size = f"{len(chosen)} worker{'s' if len(chosen) > 1 else ''}"
    reason = f"{alarm}generation {number} formed by {listed(chosen)}: {size}, {num_new} of them new"
    if left_out:
        reason += f"; {listed(left_out)} left out, not reached by all"
    return Generation(
        number=number,
        members=members,
        store_port=workers[0].store_port,
        continues=continues,
        max_workers=max_workers,
        left_out=left_out,
        reason=reason,
    )


def _min_nodes(roster: Roster) -> int:
    """Of a range MIN:MAX, MIN. A plain number says how many to begin with: a job continues with fewer."""
    least, most = roster.policy.min_nodes, roster.policy.max_nodes
    return least if most is not None and least < most else 1


def _max_workers(roster: Roster) -> int | None:
    limits = [roster.policy.max_workers, *(arrival.max_workers for arrival in roster.arrivals.values())]
    return min((limit for limit in limits if limit is not None), default=None)
