"""What Prometheus gets: the numbers of a coordinator, as its own parser reads them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from everstep.wire.pool import DISABLED
from lab.command import until
from lab.experiments import BusyPool, spec

Numbers = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture
def agent(server: Any) -> Iterator[BusyPool]:
    with BusyPool(server.url, server.token, "k", name="a", num_slots=2).joined() as agent:
        yield agent


def numbers(agent: BusyPool) -> Numbers:
    families = text_string_to_metric_families(agent.people.prometheus())
    return {(each.name, tuple(sorted(each.labels.items()))): each.value for it in families for each in it.samples}


def of(agent: BusyPool, name: str, **labels: str) -> float:
    return numbers(agent).get((f"everstep_{name}", tuple(sorted(labels.items()))), 0.0)


def test_slots_queues_trials_and_moves_are_told(agent: BusyPool) -> None:
    before = of(agent, "pool_moves_total", pool="default", move="start")
    agent.people.create_experiment(spec(max_trials=3, name="x"))
    until(lambda: len(agent.held()) == 2)
    assert of(agent, "pool_slots", pool="default", kind="k", state="busy") == 2
    assert of(agent, "trials", state="RUNNING") == 2 and of(agent, "trials", state="QUEUED") == 1
    assert of(agent, "experiments", state="ACTIVE") == 1
    assert of(agent, "pool_moves_total", pool="default", move="start") == before + 2
    until(lambda: of(agent, "pool_queue_trials", pool="default") == 1)
    agent.change(DISABLED, "a")
    assert of(agent, "pool_nodes", pool="default", kind="k", state="disabled") == 1


def test_the_coordinator_tells_of_its_own_work(agent: BusyPool) -> None:
    told = numbers(agent)
    for name in ("pool_decision_seconds", "store_seconds"):
        count = told[f"everstep_{name}_count", ()]
        assert count > 0 and told[f"everstep_{name}_bucket", (("le", "+Inf"),)] == count
        assert told[f"everstep_{name}_sum", ()] >= 0
    for name in ("regroups_total", "metric_points_total", "log_bytes_total", "stream_readers", "jobs_in_memory"):
        assert (f"everstep_{name}", ()) in told


def test_a_name_that_anyone_may_choose_is_quoted(server: Any) -> None:
    name = 'k"\\\n{}='
    with BusyPool(server.url, server.token, name, name="b").joined() as agent:
        assert of(agent, "pool_nodes", pool="default", kind=name, state="enabled") == 1


def test_it_is_told_to_those_who_may_look(server: Any) -> None:
    assert httpx.get(f"{server.url}/metrics", timeout=60).status_code == 401
    answer = httpx.get(f"{server.url}/metrics", headers={"authorization": f"Bearer {server.token}"}, timeout=60)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
