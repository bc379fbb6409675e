"""Nodes of a pool for the experiments of a command: once none of them is active, all nodes are released."""

from __future__ import annotations

import logging
import threading
from contextlib import closing
from dataclasses import replace

from everstep import wire
from everstep.client.calls import Coordinator
from everstep.errors import EverstepError
from everstep.pool.decide_nodes import NodeOrders, NodesSpec
from everstep.pool.nodes_keeper import TURN_S, NodesKeeper
from everstep.waiting import wait_until
from everstep.wire.experiments import LIVE, PAUSED

log = logging.getLogger("everstep")

AT_WORK = ",".join(each for each in LIVE if each != PAUSED)
_RELEASE_S = 75.0  # trials save before
_MOST_LISTED = 1000  # experiments


class TemporaryNodesKeeper(NodesKeeper):
    """Keeps a pool for the experiments of commands: once none is active, it releases all nodes, and ends."""

    _is_unused = False

    def run(self, asked: threading.Event) -> None:
        with closing(self._connect()) as coordinator:
            while not self.is_released and not asked.wait(self._turn(coordinator)):
                pass
        if not self.is_released:
            self._release()

    def _spec(self, coordinator: Coordinator, view: wire.PoolView) -> NodesSpec:
        spec = self._section.spec()
        self._is_unused = view.num_wanted == 0 and self._name not in pools_at_work(coordinator)
        return replace(spec, min_nodes=0, idle_s=0.0) if self._is_unused else spec

    def _obey(self, orders: NodeOrders) -> None:
        super()._obey(orders)
        if self._is_unused and all(each.made.is_over for each in self._seen.values()):
            self._fleet.dissolve(is_good=True)
            self.is_released = True

    def _release(self) -> None:
        """Release all nodes at once. Trials on them save, and wait for other nodes."""
        wait_until(self._is_empty, _RELEASE_S, f"the nodes of pool {self._name} to end", pause_s=TURN_S)

    def _is_empty(self) -> bool:
        try:
            alive = [each for each in self._fleet.nodes() if not each.is_over]
            for each in alive:
                if not each.is_leaving:
                    self._fleet.remove(each.name)
            if not alive:
                self._fleet.dissolve(is_good=True)
                self.is_released = True
        except (EverstepError, OSError) as error:
            log.warning("pool %s: %s", self._name, error)
        return self.is_released


def pools_at_work(coordinator: Coordinator) -> set[str]:
    """The pools of experiments that are active or ending."""
    found = coordinator.experiments(limit=_MOST_LISTED, state=AT_WORK)
    return {each.scheduling.pool for each in found.experiments}
