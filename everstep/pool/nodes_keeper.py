"""Create the nodes of one pool, as many as trials want, and release them. A keeper may be killed at any moment: its
nodes outlive it, and the next one finds them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING

from everstep import wire
from everstep.client.calls import Coordinator
from everstep.errors import EverstepError
from everstep.platforms.fleet import Fleet
from everstep.pool.decide_nodes import NodeOrders, NodesSpec, decide_nodes, most_slots
from everstep.pool.seen_nodes import PoolSight, Seen
from everstep.wire.pool import MAX_REASON, MOST_AGENTS

if TYPE_CHECKING:  # the local service reads no pool file
    from everstep.pool.pool_file import PoolSection

log = logging.getLogger("everstep")

TURN_S = 0.5
_PAUSE_S = 5.0  # after the platform has refused something
_REPORT_S = 10.0  # even if nothing has changed

Say = Callable[[str], None]


class NodesKeeper:
    """Keeps the nodes of one pool."""

    is_released = False  # no node is left, and none will be created

    def __init__(
        self, name: str, section: PoolSection, fleet: Fleet, connect: Callable[[], Coordinator], say: Say
    ) -> None:
        self._name, self._section, self._fleet, self._connect, self._say = name, section, fleet, connect, say
        self._seen: Seen = {}
        self._said = ""
        self._told: tuple[wire.PoolNodes | None, float] = (None, float("-inf"))

    def run(self, asked: threading.Event) -> None:
        with closing(self._connect()) as coordinator:
            while not asked.wait(self._turn(coordinator)):
                pass

    def _turn(self, coordinator: Coordinator) -> float:
        """One round of looking and acting. Returns the pause until the next."""
        try:
            view = coordinator.pool(self._name)
        except EverstepError as error:  # it is being started again; without it, we do not know what is wanted
            log.info("pool %s: %s", self._name, error)
            return 2 * TURN_S
        try:
            orders = self._decide(view, self._spec(coordinator, view))
            self._obey(orders)
            reason, pause_s = orders.reason, TURN_S
        except (EverstepError, OSError) as error:
            reason, pause_s = str(error), _PAUSE_S
        try:
            self._report(coordinator, reason)
        except EverstepError as error:
            log.info("pool %s: %s", self._name, error)
        return pause_s

    def _spec(self, _coordinator: Coordinator, _view: wire.PoolView) -> NodesSpec:
        return self._section.spec()

    def _decide(self, view: wire.PoolView, spec: NodesSpec) -> NodeOrders:
        now = time.time()
        sight = PoolSight.of(self._fleet.nodes(), view, self._seen, now)
        self._seen = sight.nodes
        return decide_nodes(sight.num_wanted, list(sight.nodes.values()), spec, now)

    def _obey(self, orders: NodeOrders) -> None:
        if orders.reason != self._said:
            self._said = orders.reason
            self._say(f"pool {self._name}: {orders.reason}")
        for name in orders.remove:
            self._fleet.remove(name)
        for number in orders.add:
            self._fleet.add(number)

    def _report(self, coordinator: Coordinator, reason: str) -> None:
        nodes = list(self._seen.values())
        told = wire.PoolNodes(
            platform=self._section.platform.chosen,
            min_nodes=self._section.min_nodes,
            max_nodes=self._section.max_nodes,
            num_nodes=sum(each.is_kept for each in nodes),
            num_joining=sum(each.is_coming for each in nodes),
            most_slots=most_slots(nodes, self._section.spec()),
            reason=reason[:MAX_REASON],
            dead=[each.made.name for each in nodes if each.made.is_dead and each.has_joined][-MOST_AGENTS:],
        )
        before, at = self._told
        if told != before or time.monotonic() - at > _REPORT_S:
            coordinator.report_nodes(self._name, told)
            self._told = (told, time.monotonic())
