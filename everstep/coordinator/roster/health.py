"""Decide who is lost, who hangs, and whether a whole generation stalls.

A live worker may make no progress. Life has a short lease, proved by any call of the worker or by its agent.
Progress is judged by what the workers say of their phases, against times learned from the job itself, so that a
compilation or a long validation kills no worker. Old reports prove nothing.
Pure: facts and `now` in, a value with its reason out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from everstep.coordinator.roster.facts import ALIVE, LEFT, Decision, NodeSign, Roster, Sign, listed
from everstep.wire import COMPUTING, WAITING

HANG_STEPS = 10  # a worker hangs when a micro-batch takes this many of its longest steps …
STALL_WAITS = 5  # … and a generation stalls when all wait for this many of the longest waits
FIRST_STEP_STALLS = 6  # before the first step nothing is known yet: groups are formed, kernels compiled
CUT_S = 0.5  # an agent whose connection was closed has this long to open another


@dataclass(frozen=True, kw_only=True, slots=True)
class HealthDecision(Decision):
    lost: Mapping[str, str] = field(default_factory=dict)  # worker or node → why
    is_found: bool = False  # the silence or the stall that was looked for


def decide_health(roster: Roster, signs: Mapping[str, Sign], now: float) -> HealthDecision:
    """Lost is who gave no proof of life for a lease."""
    lease_s = roster.policy.lease_s
    silent, next_look = {}, None
    for name, worker in roster.workers.items():
        if worker.status != ALIVE or name not in signs:
            continue
        deadline = signs[name].alive_at + lease_s
        if deadline <= now:
            silent[name] = f"no proof of life for {now - signs[name].alive_at:.1f} s"
        elif next_look is None or deadline < next_look:
            next_look = deadline
    reason = f"{listed(silent)} gave no proof of life for {lease_s:.1f} s" if silent else "all are alive"
    return HealthDecision("some-lost" if silent else "all-alive", reason, lost=silent, next_look=next_look)


def decide_nodes(roster: Roster, signs: Mapping[str, NodeSign], now: float) -> HealthDecision:
    """Gone is a node whose agent did not report for a lease, or hung up and did not call again at once."""
    gone, next_look = {}, None
    for name, node in roster.nodes.items():
        if not node.is_present or name not in signs:
            continue
        sign = signs[name]
        deadline = sign.alive_at + (CUT_S if sign.is_cut else roster.policy.lease_s)
        if deadline <= now:
            gone[name] = "its agent ended" if sign.is_cut else f"no report for {now - sign.alive_at:.1f} s"
        elif next_look is None or deadline < next_look:
            next_look = deadline
    return HealthDecision(
        "some-gone" if gone else "all-present",
        f"{listed(gone)} gone" if gone else "all nodes are present",
        lost=gone,
        next_look=next_look,
    )


def decide_silence(roster: Roster, signs: Mapping[str, NodeSign], now: float) -> HealthDecision:
    """Classic workers tell nothing of their steps: they hang when none of them printed or did anything for long."""
    silence_s, attempt = roster.policy.silence_s, roster.attempt
    if silence_s is None or not attempt.is_open or roster.is_regrouping:
        return HealthDecision("not-watched", "silence is not watched")
    unfinished = [s for s in attempt.parts if any(roster.workers[name].status != LEFT for name in s.workers)]
    if not unfinished or any(part.agent not in signs for part in unfinished):
        return HealthDecision("not-all-heard", "not all nodes have been heard", next_look=now + silence_s)
    since = max(roster.attempt_at, *(signs[part.agent].silent_since for part in unfinished))
    if since + silence_s > now:
        return HealthDecision("not-silent", "workers are active", next_look=since + silence_s)
    return HealthDecision("silent", f"no worker printed or did anything for {now - since:.1f} s", is_found=True)


def decide_hang(roster: Roster, signs: Mapping[str, Sign], now: float) -> HealthDecision:
    """One computes far longer than it ever did, and all others wait for it."""
    heard = _heard(roster, signs, now)
    if heard is None:
        return HealthDecision(
            "not-all-heard", "not all members have been heard", next_look=_later(roster, now, roster.policy.hang_s)
        )
    computing = [name for name, sign in heard.items() if sign.phase == COMPUTING]
    num_waiting = sum(1 for sign in heard.values() if sign.phase == WAITING)
    if len(computing) == 1 and num_waiting == len(heard) - 1:
        name, sign = computing[0], heard[computing[0]]
        threshold_s = max(roster.policy.hang_s, HANG_STEPS * sign.longest_step_s)
        if sign.phase_since + threshold_s <= now:
            computed_s, longest_s = now - sign.phase_since, sign.longest_step_s
            why = f"{name} has computed for {computed_s:.1f} s (its longest step took {longest_s:.1f} s)"
            reason = f"{why} while {num_waiting} others wait"
            return HealthDecision("hangs", reason, lost={name: reason})
        return HealthDecision(
            "waits-for-one", "the others wait for one that computes", next_look=sign.phase_since + threshold_s
        )
    # No worker can hang sooner than this, whatever is heard next.
    earliest = min(sign.phase_since if sign.phase == COMPUTING else sign.told_at for sign in heard.values())
    return HealthDecision(
        "none-hangs", "no worker hangs", next_look=max(earliest + roster.policy.hang_s, now + roster.policy.heartbeat_s)
    )


def decide_stall(roster: Roster, signs: Mapping[str, Sign], now: float) -> HealthDecision:
    """All wait for each other: none is dead, yet a link between them is cut."""
    heard = _heard(roster, signs, now)
    if heard is None:
        return HealthDecision(
            "not-all-heard", "not all members have been heard", next_look=_later(roster, now, roster.policy.stall_s)
        )
    stall_s = roster.policy.stall_s
    if not all(sign.phase == WAITING for sign in heard.values()):
        latest = max(sign.phase_since if sign.phase == WAITING else sign.told_at for sign in heard.values())
        return HealthDecision(
            "not-all-wait", "not all wait", next_look=max(latest + stall_s, now + roster.policy.heartbeat_s)
        )
    if min(sign.step for sign in heard.values()) > 0:
        threshold_s = max(stall_s, STALL_WAITS * max(sign.longest_wait_s for sign in heard.values()))
    else:
        threshold_s = FIRST_STEP_STALLS * stall_s
    since = max(sign.phase_since for sign in heard.values())
    if since + threshold_s > min(sign.told_at for sign in heard.values()):  # since then, some may wait no more
        # Not later than a stall time from now: the threshold shrinks after the first step.
        look_at = max(since + threshold_s, now + roster.policy.heartbeat_s)
        return HealthDecision("all-wait", "all wait", next_look=min(look_at, now + stall_s))
    return HealthDecision(
        "stalled",
        f"all {len(heard)} members have waited for each other for {now - since:.1f} s: a link is cut",
        is_found=True,
    )


def _later(roster: Roster, now: float, patience_s: float) -> float | None:
    """The earliest time at which anything can have lasted that long, whatever is reported next."""
    if not roster.generation.is_open:
        return None
    return max(roster.formed_at + patience_s, now + roster.policy.heartbeat_s)


def _heard(roster: Roster, signs: Mapping[str, Sign], now: float) -> dict[str, Sign] | None:
    """What the members of the open generation said of themselves in it, if each of them did so lately."""
    if not roster.generation.is_open or roster.is_over:
        return None
    heard = {}
    oldest = max(roster.formed_at, now - max(roster.policy.lease_s, 2 * roster.policy.heartbeat_s))
    for name in roster.generation.ranks:
        sign = signs.get(name)
        if sign is None or sign.told_at < oldest:
            return None
        # A phase that began in an earlier generation counts from the forming of this one.
        heard[name] = sign if sign.phase_since >= roster.formed_at else replace(sign, phase_since=roster.formed_at)
    return heard
