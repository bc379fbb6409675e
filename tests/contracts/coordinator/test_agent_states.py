"""Nodes of a pool that are drained, disabled and enabled, and the queue, at a real coordinator on each store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from everstep import wire
from everstep.errors import Refused
from everstep.wire.pool import DISABLED, DRAINING, ENABLED
from lab.command import until
from lab.experiments import SPACE, BusyPool, spec

Join = Callable[..., BusyPool]


@pytest.fixture
def join(server_on_each_store: Any) -> Iterator[Join]:
    with ExitStack() as stack:

        def join(name: str, *, num_slots: int = 1, pool: str = "default") -> BusyPool:
            server = server_on_each_store
            agent = BusyPool(server.url, server.token, name=name, num_slots=num_slots, pool=pool)
            return stack.enter_context(agent.joined())

        yield join


def create(agent: BusyPool, num_trials: int, **scheduling: Any) -> int:
    made = spec(max_trials=num_trials, name="work", scheduling=wire.Scheduling(**scheduling), hyperparameters=SPACE)
    return agent.people.create_experiment(made).experiment


def until_held(number: int, *agents: BusyPool) -> None:
    """By all of them together."""

    until(lambda: sum(len(each.held()) for each in agents) == number, lambda: f"{agents[0].people.pool('default')}")


def test_a_draining_node_gives_its_trials_away_and_gets_no_others(join: Join) -> None:
    first, second = join("a"), join("b")
    create(first, 3)
    until_held(2, first, second)
    first.change(DRAINING, "a", reason="a new disk")
    until_held(1, first, second)
    assert first.held() == []
    assert (first.view().state, first.view().state_reason) == (DRAINING, "a new disk")
    assert first.people.pool("default").num_free == 0, "a slot that nobody gets is not free"
    first.change(DRAINING, "a", reason="a new disk")  # again: nothing changes
    first.change(ENABLED, "a")
    until_held(2, first, second)


def test_a_disabled_node_keeps_its_trials_and_gets_no_others(join: Join) -> None:
    agent = join("a", num_slots=2)
    first = create(agent, 1)
    until_held(1, agent)
    agent.change(DISABLED, is_all=True)
    second = create(agent, 1)
    until(lambda: [each.experiment for each in agent.people.queue("default").entries if each.position] == [second])
    assert agent.held() == [(first, 1)]
    agent.change(ENABLED, is_all=True)
    until_held(2, agent)


def test_a_node_that_is_unknown_is_refused_with_those_that_exist(join: Join) -> None:
    agent = join("a")
    join("b")
    with pytest.raises(Refused, match="no node c; it has a, b") as refused:
        agent.change(DRAINING, "a", "c")
    assert refused.value.code == "pool-agent-unknown"
    assert (agent.view().state, agent.view().state_reason) == (ENABLED, ""), "all or none"
    with pytest.raises(Refused, match="name agents, or set is_all"):
        agent.change(DRAINING)


def test_the_queue_says_who_waits_and_why(join: Join) -> None:
    agent = join("a")
    first = create(agent, 2)
    until_held(1, agent)
    second = create(agent, 3, priority=60, weight=2.0)
    until(lambda: agent.people.queue("default").num_waiting == 4)
    queue = {each.experiment: each for each in agent.people.queue("default").entries}
    assert list(queue) == [first, second]
    assert (queue[first].num_running, queue[first].num_held, queue[first].num_waiting) == (1, 1, 1)
    assert (queue[second].position, queue[second].priority, queue[second].weight) == (2, 60, 2.0)
    assert queue[second].num_waiting == len(queue[second].waiting) == 3 and queue[second].num_held == 0
    assert all(each.reason for entry in queue.values() for each in entry.waiting)
    (waiting,) = [each for each in agent.people.trials(first).trials if each.state == "QUEUED"]
    assert waiting.reason == queue[first].reason


def test_the_share_of_an_experiment_can_be_changed_while_it_runs(join: Join) -> None:
    agent = join("a")
    number = create(agent, 1)
    until_held(1, agent)
    view = agent.people.change(number, wire.ExperimentChange(priority=7, weight=0.5, max_slots=3))
    wanted = wire.Scheduling(priority=7, weight=0.5, max_slots=3)
    assert view.scheduling == agent.people.experiment(number).scheduling == wanted
    with pytest.raises(Refused, match="less than or equal to 99"):
        agent.people.change(number, wire.ExperimentChange(priority=100))
    assert agent.people.experiment(number).scheduling == wanted


def test_each_pool_has_its_own_nodes(join: Join) -> None:
    one, other = join("a"), join("a", pool="other")
    other.change(DISABLED, "a")
    assert (one.view().state, other.view().state) == (ENABLED, DISABLED)
    assert [each.pool for each in one.people.pools().pools] == ["default", "other"]
    assert other.people.queue("other").entries == []
