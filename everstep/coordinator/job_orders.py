"""Orders for a job's agents: made again only if the roster has changed, and sent only if their content has.

An agent's call is held until there is news for it. Made from the roster as it was kept last."""

from __future__ import annotations

from collections import defaultdict

from everstep.coordinator.roster import replies
from everstep.coordinator.roster.facts import Roster
from everstep.coordinator.waiters import Bell


class JobOrders:
    def __init__(self, roster: Roster, bell: Bell, seen: int) -> None:
        """`bell`: rings for agents whose orders may have changed. `seen`: the number that peers begin with."""
        self._kept, self._bell = roster, bell
        self._workers_of: dict[str, list[str]] = defaultdict(list)
        for worker in roster.workers.values():
            self._workers_of[worker.agent].append(worker.worker)
        self._told: dict[str, replies.EncodedOrders] = {}
        self._peers = replies.next_peers(roster, replies.Peers(seen=seen, all=[]))
        self._orders_of = replies.Orders(roster, self._peers)

    def of(self, agent: str, incarnation: str) -> replies.EncodedOrders:
        told = self._told.get(agent)
        if told is not None and told.roster is self._kept and told.incarnation == incarnation:
            return told
        if self._orders_of.roster is not self._kept:
            self._peers = replies.next_peers(self._kept, self._peers)
            self._orders_of = replies.Orders(self._kept, self._peers)
        workers = [self._kept.workers[name] for name in self._workers_of[agent]]
        orders = self._orders_of.of(agent, incarnation, workers)
        return replies.EncodedOrders(self._kept, incarnation, orders)

    def told(self, agent: str) -> replies.EncodedOrders | None:
        """What it knows. To be looked at when its call comes in: an earlier call of it may still be held, and is
        answered as well, where no one listens any more."""
        return self._told.get(agent)

    def tell(
        self, agent: str, orders: replies.EncodedOrders, peers_seen: int, report_s: float, *, wants_all: bool
    ) -> bytes:
        """The answer to its report; from now on it knows."""
        self._told[agent] = orders
        return orders.encode(self._peers, peers_seen, report_s, wants_all=wants_all)

    def follow(self, before: Roster, roster: Roster) -> None:
        """Orders depend on the attempt, which concerns all agents, and on an agent's own workers."""
        self._kept = roster
        for worker in list(roster.workers.values())[len(before.workers) :]:  # none is ever taken out
            self._workers_of[worker.agent].append(worker.worker)
        is_for_all = roster.attempt is not before.attempt or roster.is_regrouping != before.is_regrouping
        if is_for_all or roster.is_over:
            self._bell.ring()
        elif roster.workers is not before.workers:
            known = before.workers
            for agent in {each.agent for name, each in roster.workers.items() if known.get(name) is not each}:
                self._bell.ring_for(agent)
