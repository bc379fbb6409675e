"""What is said of a pool's node outlives the node and the coordinator, on each store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from everstep.wire.pool import DRAINING, ENABLED
from lab.command import until
from lab.experiments import BusyPool, spec


def test_a_drained_node_that_is_started_again_stays_drained(server_class: Any, store_url: str, tmp_path: Path) -> None:
    server = server_class(tmp_path, store_url)
    try:
        with BusyPool(server.url, server.token, name="a").joined() as agent:
            agent.change(DRAINING, "a", reason="it is noisy")
            agent.leave()
            assert (agent.view().state, agent.view().is_present) == (DRAINING, False)
            server.kill()
            server.start()
        with BusyPool(server.url, server.token, name="a").joined() as again:
            assert again.last is not None, "the node is told, so that it can say so"
            assert (again.last.state, again.last.state_reason) == (DRAINING, "it is noisy")
            assert (again.view().state, again.view().is_present) == (DRAINING, True)
            experiment = again.people.create_experiment(spec(max_trials=1)).experiment
            until(lambda: again.people.queue("default").num_waiting == 1)
            assert again.held() == []
            again.change(ENABLED, "a")
            until(lambda: again.held() == [(experiment, 1)])
    finally:
        server.end()
