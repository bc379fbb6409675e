"""Decide when all workers are started together, and on which nodes: the first time, and again for classic scripts.

Workers that announce themselves form generations: only the dead among them are replaced, and a node that comes later
joins the others. All others are classic: when one fails, or a node comes or goes, all are restarted
together, on a fresh port, once every node has ended its own. A worker that ended well is not a loss.
Pure: facts and `now` in, a value with its reason out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from everstep.coordinator.roster.facts import DEAD, GONE, LEFT, Decision, Node, NodePart, Roster, Worker, listed
from everstep.coordinator.roster.fitness import Fit, decide_fit
from everstep.coordinator.roster.reachability import largest_mutual
from everstep.wire import limits


@dataclass(frozen=True, kw_only=True, slots=True)
class Starting(Decision):
    begins_on: tuple[Node, ...] = ()  # the next attempt begins, on these nodes
    joining: tuple[Node, ...] = ()  # these join the attempt that there is
    closes: bool = False  # the attempt is over, for `reason` …
    is_restart: bool = False  # … which counts
    stops: bool = False  # the job is over, for `reason`


def decide_attempt(roster: Roster, now: float) -> Starting:
    attempt = roster.attempt
    if roster.is_over:
        return Starting("over", f"the job is over: {roster.reason}")
    if not attempt.is_open:
        return _decide_next(roster, now)
    if roster.is_regrouping:
        return _decide_joining(roster)
    return _decide_gone(roster) or _decide_failure(roster) or _decide_newcomers(roster, now)


# --- the next attempt ---


def _decide_next(roster: Roster, now: float) -> Starting:
    policy = roster.policy
    candidates = _candidates(roster)
    chosen = _reaching_each_other(roster, candidates)
    if len(chosen) < policy.min_nodes:
        if stopped := _decide_unfit(roster, now):
            return stopped
        return _wait_for_nodes(roster, candidates, chosen, now)
    busy = [node.agent for node in chosen if not _is_idle(roster, node)]
    if busy:
        return Starting(
            "waits-for-last-attempt",
            f"{listed(busy)} still end{'s' * (len(busy) == 1)} the workers of the last attempt",
        )
    is_first = roster.attempt.number < 0
    if is_first and len(chosen) < policy.start_nodes and now < (deadline := roster.nodes_at + policy.start_s):
        return Starting("waits-for-start", f"{len(chosen)} of {policy.start_nodes} nodes have come", next_look=deadline)
    last_call = roster.nodes_at + policy.last_call_s
    nodes = f"{len(chosen)} node{'s' * (len(chosen) != 1)}"
    num_here = len(chosen) + len(fit_nodes(roster).left_out)  # these have come too: they are not waited for
    if (policy.max_nodes is None or num_here < policy.max_nodes) and now < last_call:
        return Starting("last-call", f"{nodes}; more may come", next_look=last_call)
    chosen = sorted(chosen[: policy.max_nodes], key=_place)
    if len(_within_limit(roster, chosen)) < len(chosen):
        num = len(roster.workers) + sum(node.num_workers for node in chosen)
        return Starting(
            "too-many-workers", f"the job would have {num} workers, the limit is {limits.MAX_WORKERS}", stops=True
        )
    why = f" after: {roster.attempt.reason}" if roster.attempt.number >= 0 else ""
    size = sum(node.num_workers for node in chosen)
    reason = f"attempt {roster.attempt.number + 1} with {size} worker{'s' * (size != 1)} on {nodes}{why}"
    return Starting("begins", reason, begins_on=tuple(chosen))


def _within_limit(roster: Roster, nodes: Sequence[Node]) -> list[Node]:
    """The first of them, as far as the job may have their workers besides all that it ever had."""
    totals = accumulate((node.num_workers for node in nodes), initial=len(roster.workers))
    next(totals)
    return [node for node, total in zip(nodes, totals, strict=True) if total <= limits.MAX_WORKERS]


def _candidates(roster: Roster) -> list[Node]:
    """Fit nodes that are there and have workers to start: those of the last attempt first, then in order of coming."""
    taking_part = {(part.agent, part.incarnation) for part in roster.attempt.parts}
    kept = fit_nodes(roster).kept
    candidates = [node for node in _present(roster) if node.agent in kept]
    return sorted(candidates, key=lambda node: ((node.agent, node.incarnation) not in taking_part, node.order))


def _present(roster: Roster) -> list[Node]:
    return [node for node in roster.nodes.values() if node.is_present and node.num_workers]


def fit_nodes(roster: Roster) -> Fit:
    return decide_fit(_present(roster), roster.policy.min_nodes)


def _decide_unfit(roster: Roster, now: float) -> Starting | None:
    """Enough nodes came, but too many of them failed their check: no waiting will help."""
    policy, fit = roster.policy, fit_nodes(roster)
    if len(fit.kept) + len(fit.failed) < policy.min_nodes or not fit.failed:
        return None
    if now < (last_call := roster.nodes_at + policy.last_call_s):
        return Starting(
            "last-call-after-failures", f"{listed(fit.failed)} failed; more nodes may come", next_look=last_call
        )
    failed = "; ".join(f"{agent}: {why}" for agent, why in fit.failed.items())
    return Starting(
        "too-few-fit", f"{len(fit.kept)} of at least {policy.min_nodes} nodes are fit; {failed}", stops=True
    )


def _place(node: Node) -> tuple[bool, int, int]:
    """Ranks as wished, else in order of coming."""
    return (node.node_rank < 0, node.node_rank, node.order)


def _reaching_each_other(roster: Roster, candidates: Sequence[Node]) -> list[Node]:
    names = [node.agent for node in candidates]
    chosen = largest_mutual(names, {node.agent: node.unreachable for node in candidates}, set(names))
    return [node for node in candidates if node.agent in chosen]


def _wait_for_nodes(roster: Roster, candidates: Sequence[Node], chosen: Sequence[Node], now: float) -> Starting:
    policy, deadline = roster.policy, roster.nodes_at + roster.policy.join_s
    if not candidates and roster.attempt.number < 0:
        return Starting("none-present", "no node is there yet")
    cut = "" if len(chosen) == len(candidates) else f" ({len(candidates) - len(chosen)} more cannot be reached by all)"
    what = f"{len(chosen)} of at least {policy.min_nodes} nodes have come{cut}"
    if now >= deadline:
        return Starting("none-came", f"{what}, and none came for {policy.join_s:.0f} s", stops=True)
    return Starting("waits-for-nodes", what, next_look=deadline)


# --- while one is under way ---


def _decide_joining(roster: Roster) -> Starting:
    """A node that comes while workers regroup disturbs no other: its workers join as usual."""
    room = _room(roster)
    coming = _within_limit(roster, _not_taking_part(roster)[:room])
    if not coming:
        return Starting("open", roster.attempt.reason)
    names = listed(node.agent for node in coming)
    return Starting("joins", f"{names} came and start{'s' * (len(coming) == 1)} workers", joining=tuple(coming))


def _decide_failure(roster: Roster) -> Starting | None:
    failed = [roster.workers[name] for name in _names(roster.attempt.parts) if roster.workers[name].status == DEAD]
    if not failed:
        return None
    first = failed[0]
    suspects = [part.agent for part in roster.attempt.parts if _is_suspect(roster, part)]
    if suspects:  # a node that goes takes others' workers along, which is not their failure
        return Starting(
            "failure-suspect", f"{first.worker} {first.reason}; whether {listed(suspects)} is gone is not known yet"
        )
    return end_attempt(roster, f"{first.worker} on {first.agent} {first.reason}")


def end_attempt(roster: Roster, what: str) -> Starting:
    """For a failure of its workers: restart all, if that is still allowed."""
    used, allowed = roster.num_restarts, roster.policy.max_restarts
    if used >= allowed:
        left = f"all {allowed} restarts are used" if allowed else "no restart is allowed (--max-restarts)"
        return Starting("no-restart-left", f"{what}; {left}", stops=True)
    return Starting("restarts", f"{what}; all are restarted, {used + 1} of {allowed}", closes=True, is_restart=True)


def _decide_gone(roster: Roster) -> Starting | None:
    """A node that went takes its unfinished workers along; two that lost each other cannot continue together."""
    gone = [
        part.agent for part in roster.attempt.parts if not _is_finished(roster, part) and not _is_there(roster, part)
    ]
    if gone:
        reasons = {roster.nodes[name].reason for name in gone if name in roster.nodes}
        why = f" ({listed(sorted(reasons))})" if reasons else ""
        return Starting("node-gone", f"{listed(gone)} {'is' if len(gone) == 1 else 'are'} gone{why}", closes=True)
    taking_part = {part.agent for part in roster.attempt.parts if not _is_finished(roster, part)}
    for name in sorted(taking_part & roster.nodes.keys()):
        if cut := sorted(taking_part.intersection(roster.nodes[name].unreachable)):
            return Starting("node-cut", f"{name} cannot reach {listed(cut)}", closes=True)
    return None


def _decide_newcomers(roster: Roster, now: float) -> Starting:
    """A node that comes later is worth a restart, but not in the first moments, nor after the first good end."""
    attempt = roster.attempt
    has_ended = any(roster.workers[name].status == LEFT for name in _names(attempt.parts))
    coming = _not_taking_part(roster)
    taking_part = {part.agent for part in attempt.parts}
    reached = [
        node for node in coming
        if not taking_part.intersection(node.unreachable)
        and not any(node.agent in roster.nodes[name].unreachable for name in taking_part & roster.nodes.keys())
    ][: _room(roster)]  # fmt: skip
    if not reached or has_ended:
        return Starting("open", attempt.reason)
    at = max(roster.attempt_at + roster.policy.undecided_s, roster.nodes_at + roster.policy.last_call_s)
    names = listed(node.agent for node in reached)
    if now < at:
        return Starting("newcomers-undecided", f"{names} came; whether workers regroup is not known yet", next_look=at)
    return Starting("newcomers", f"{names} came", closes=True)


def _room(roster: Roster) -> int:
    """How many more nodes may take part."""
    limit = roster.policy.max_nodes
    taken = sum(_is_there(roster, part) for part in roster.attempt.parts)
    return len(roster.nodes) if limit is None else max(0, limit - taken)


def _not_taking_part(roster: Roster) -> list[Node]:
    ranks = roster.attempt.node_ranks()
    return [
        node for node in _candidates(roster) if (node.agent, node.incarnation) not in ranks and _is_idle(roster, node)
    ]


def _is_idle(roster: Roster, node: Node) -> bool:
    """Whether all workers that this very agent was to start are gone."""
    its = (worker for worker in roster.workers.values() if worker.agent == node.agent)
    return not any(True for _ in unended(its, node.incarnation))


def unended(workers: Iterable[Worker], incarnation: str) -> Iterator[Worker]:
    """Of an agent's workers, those that it was to start with an attempt and that are not known to be gone."""
    return (each for each in workers if each.status not in GONE and each.request.startswith(f"{incarnation}/"))


def _is_there(roster: Roster, part: NodePart) -> bool:
    node = roster.nodes.get(part.agent)
    return node is not None and node.is_present and node.incarnation == part.incarnation


def _is_suspect(roster: Roster, part: NodePart) -> bool:
    return _is_there(roster, part) and roster.nodes[part.agent].is_suspect


def _is_finished(roster: Roster, part: NodePart) -> bool:
    return all(roster.workers[name].status == LEFT for name in part.workers)


def _names(parts: Iterable[NodePart]) -> list[str]:
    return [name for part in parts for name in part.workers]


def why_idle(roster: Roster) -> str:
    """Why a fit node has no part in the open attempt."""
    limit = roster.policy.max_nodes
    if limit is not None and _room(roster) == 0:
        return f"{limit} of {limit} nodes take part; this one is a spare"
    return decide_attempt(roster, float("-inf")).reason
