"""The replies: views of a roster, and the two that thousands of workers get at the same moment, written as bytes once.

Pure. Says only what has been kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from everstep.coordinator.roster.facts import (
    ALIVE,
    DEAD,
    LOST,
    MEMBER,
    STARTING,
    WAITING_TO_JOIN,
    Generation,
    Node,
    Roster,
    Sign,
    Worker,
    num_newcomers,
)
from everstep.coordinator.roster.starting import fit_nodes, unended, why_idle
from everstep.wire import (
    AgentOrders,
    Arrived,
    AttemptOrder,
    GenerationView,
    JobView,
    KillOrder,
    NodeView,
    Peer,
    Watched,
    WorkerView,
    to_json,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Notice:
    """The reply to all watching workers."""

    watched: Watched  # by members of a generation that is not closed; its `seen` tells whether a worker knows it
    is_broken: bool

    def says_the_same_as(self, other: Notice) -> bool:
        return self._news() == other._news()

    def _news(self) -> tuple[object, ...]:
        watched = self.watched
        return watched.generation, self.is_broken, watched.newcomers, watched.leavers, watched.is_stopped

    def is_closed_for(self, generation: int) -> bool:
        """Generation 0 is that of a worker that is in none yet: it cannot be closed. Closed in good order: not yet,
        members may still be receiving what the others have sent."""
        return generation != 0 and (self.is_broken or generation != self.watched.generation)

    def encode(self, *, is_closed: bool) -> bytes:
        return to_json(replace(self.watched, is_closed=is_closed))


def notice_of(roster: Roster, seen: int) -> Notice:
    generation = roster.generation
    watched = Watched(
        seen=seen,
        is_closed=False,
        reason=roster.reason if roster.is_over else generation.reason,
        must_probe=generation.must_probe,
        newcomers=num_newcomers(roster),
        leavers={name: wish.step for name, wish in roster.wishes.items() if roster.is_member(name)},
        is_stopped=roster.is_over,
        is_finished=roster.is_finished,
        generation=generation.number,
    )
    return Notice(watched=watched, is_broken=generation.is_broken)


class FormedReplies:
    """The answer to each member of a generation: the same bytes but for the rank."""

    def __init__(self, generation: Generation) -> None:
        self.generation = generation
        first = generation.members[0] if generation.members else None
        template = Arrived(
            is_formed=True,
            is_stopped=False,
            reason=generation.reason,
            generation=generation.number,
            rank=0,
            size=len(generation.members),
            store_address=first.address if first else "",
            store_port=generation.store_port,
            continues=generation.continues,
        )
        # The reason contains names, never JSON: an unescaped quote cannot occur inside a JSON text.
        self._before, self._after = to_json(template).split(b'"rank":0', 1)

    def of(self, worker: str) -> bytes:
        return b'%b"rank":%d%b' % (self._before, self.generation.ranks[worker], self._after)


def why_waiting(roster: Roster, name: str) -> str | None:
    """Why a worker that is ready is not in the open generation, if there is one."""
    generation = roster.generation
    if name in generation.left_out or not generation.is_open:
        return generation.left_out.get(name)
    if num_newcomers(roster):
        return f"generation {generation.number} will let newcomers in after its present step"
    return f"generation {generation.number} has all the {len(generation.members)} workers it can use; a spare waits"


class Orders:
    """The orders that a roster means for agents. What all of them have in common is computed once."""

    def __init__(self, roster: Roster, peers: Peers) -> None:
        self.roster, self._peers = roster, peers
        self._ranks = roster.attempt.node_ranks()
        self._size, self._fit = roster.attempt.size, fit_nodes(roster)
        self._is_regrouping = roster.is_regrouping

    def of(self, agent: str, incarnation: str, workers: Iterable[Worker]) -> AgentOrders:
        """All but the peers themselves."""
        roster, attempt = self.roster, self.roster.attempt
        node_rank, workers = self._ranks.get((agent, incarnation)), list(workers)
        kill = [
            KillOrder(worker=each.worker, reason=each.reason, wants_stacks=each.wants_stacks)
            for each in workers
            if each.status == LOST
        ]
        unended_ = unended(workers, incarnation)
        has_part = node_rank is not None and attempt.is_open
        return AgentOrders(
            kill=kill,
            is_ended=roster.is_over,
            reason=roster.reason if roster.is_stopped else "",
            attempt=attempt.number,
            is_attempt_closed=attempt.is_closed,
            wants_stacks=attempt.wants_stacks,
            start=[self._attempt_order(node_rank)] if node_rank is not None and has_part and not roster.is_over else [],
            past=[each.worker for each in unended_ if attempt.is_closed or each.attempt < attempt.number],
            is_regrouping=self._is_regrouping,
            why=attempt.reason if has_part or attempt.is_closed else self._why_idle(agent),
            peers_seen=self._peers.seen if has_part else 0,
        )

    def _why_idle(self, agent: str) -> str:
        why = self._fit.left_out.get(agent)
        return f"left out, a spare from now on: {why}" if why else self._why_all_idle

    @cached_property
    def _why_all_idle(self) -> str:
        return why_idle(self.roster)

    def _attempt_order(self, node_rank: int) -> AttemptOrder:
        roster, attempt = self.roster, self.roster.attempt
        part = attempt.parts[node_rank]
        return AttemptOrder(
            number=attempt.number,
            workers=list(part.workers),
            node_rank=node_rank,
            num_nodes=len(attempt.parts),
            first_rank=part.first_rank,
            size=self._size,
            master_address=attempt.master_address,
            master_port=attempt.master_port,
            num_restarts=roster.num_restarts,
            max_restarts=roster.policy.max_restarts,
            max_workers=attempt.max_workers,
            notes=self._fit.notes,
        )


class EncodedOrders:
    """One agent's orders, encoded once for all of its reports while nothing changes."""

    def __init__(self, roster: Roster, incarnation: str, orders: AgentOrders) -> None:
        self.roster, self.incarnation, self._orders = roster, incarnation, orders
        self._encoded: tuple[float, bytes] = (-1.0, b"")

    def says_the_same_as(self, other: EncodedOrders | None) -> bool:
        return other is self or (
            other is not None and (self.incarnation, self._orders) == (other.incarnation, other._orders)
        )

    def encode(self, peers: Peers, peers_seen: int, report_s: float, *, wants_all: bool) -> bytes:
        """`peers_seen`: the number of the list that the agent knows."""
        orders = self._orders
        if self._encoded[0] != report_s:
            self._encoded = report_s, to_json(replace(orders, report_s=report_s))
        encoded = self._encoded[1]
        if orders.peers_seen and orders.peers_seen != peers_seen:
            encoded = encoded.replace(b'"peers":[]', b'"peers":' + peers.encoded, 1)
        return encoded.replace(b'"wants_all":false', b'"wants_all":true', 1) if wants_all else encoded


@dataclass(frozen=True, kw_only=True, slots=True)
class Peers:
    """The nodes of the open attempt, and the number by which an agent knows whether it has heard of them all."""

    seen: int
    all: list[Peer]
    encoded: bytes = field(default=b"[]", compare=False)  # the same for all agents: each gets a line for every other


def next_peers(roster: Roster, before: Peers) -> Peers:
    nodes = [roster.nodes[each.agent] for each in roster.attempt.parts if each.agent in roster.nodes]
    found = [Peer(agent=node.agent, address=node.address, probe_port=node.probe_port) for node in nodes]
    found = [peer for peer in found if peer.probe_port]
    return before if found == before.all else Peers(seen=before.seen + 1, all=found, encoded=to_json(found))


def job_view(roster: Roster, signs: Mapping[str, Sign], reason: str, *, is_brief: bool = False) -> JobView:
    """A brief one leaves out the workers, for callers that poll."""
    return JobView(
        job=roster.job,
        generation=roster.generation.number,
        is_closed=roster.generation.is_closed,
        is_stopped=roster.is_stopped,
        is_finished=roster.is_finished,
        reason=roster.reason if roster.is_over else reason,
        workers=[] if is_brief else [_worker_view(roster, name, signs.get(name)) for name in roster.workers],
        attempt=roster.attempt.number,
        num_restarts=roster.num_restarts,
        nodes=_node_views(roster),
    )


def _node_views(roster: Roster) -> list[NodeView]:
    ranks = roster.attempt.node_ranks()
    return [_node_view(node, ranks.get((node.agent, node.incarnation), -1)) for node in roster.nodes.values()]


def _node_view(node: Node, node_rank: int) -> NodeView:
    return NodeView(
        agent=node.agent,
        address=node.address,
        num_workers=node.num_workers,
        is_present=node.is_present,
        node_rank=node_rank,
        reason=node.reason,
    )


def _worker_view(roster: Roster, name: str, sign: Sign | None) -> WorkerView:
    worker, is_member = roster.workers[name], roster.is_member(name)
    status = _shown(roster, name) if worker.status == ALIVE else worker.status
    waiting = why_waiting(roster, name) if status == WAITING_TO_JOIN else None
    return WorkerView(
        worker=name,
        status=status,
        reason=waiting or roster.generation.left_out.get(name, worker.reason),
        agent=worker.agent,
        pid=worker.pid,
        step=max(worker.step, sign.step if sign else 0),
        generation=roster.generation.number if is_member else worker.settled,
        rank=roster.generation.ranks[name] if is_member else -1,
        died_as=worker.died_as if worker.status in (DEAD, LOST) else -1,
    )


def _shown(roster: Roster, name: str) -> str:
    if roster.is_member(name):
        return MEMBER
    return WAITING_TO_JOIN if name in roster.arrivals or name in roster.wishes else STARTING


def generation_view(generation: Generation) -> GenerationView:
    return GenerationView(
        generation=generation.number,
        is_closed=generation.is_closed,
        reason=generation.reason,
        members=list(generation.members),
    )
