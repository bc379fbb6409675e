"""Time limits of experiments, images that a pool lacks, and changes that would end an experiment, on each store."""

from __future__ import annotations

import time

import pytest

from everstep import wire
from everstep.errors import Refused
from lab.command import until
from lab.experiments import BusyPool, spec
from lab.refused import refused


@pytest.fixture(params=["sqlite", "postgres"])
def frail(request, tmp_path, server_class):
    is_postgres = request.param == "postgres"
    server = server_class(tmp_path, request.getfixturevalue("postgres_url") if is_postgres else str(tmp_path / "db"))
    yield server
    server.end()


@pytest.fixture
def agent(frail):
    with BusyPool(frail.url, frail.token, num_slots=2).joined() as agent:
        yield agent


def begin(agent, **fields):
    """It runs."""
    number = agent.people.create_experiment(spec(max_trials=1, **fields)).experiment
    until(lambda: agent.people.experiment(number).ran_s > 0.0, lambda: f"{agent.view()}")
    return number


def act(agent, number, action):
    return agent.people.act(number, wire.ExperimentAction(action=action))


def set_limit(agent, number, seconds):
    return agent.people.change(number, wire.ExperimentChange(time_limit_s=seconds))


def test_an_experiment_whose_time_is_up_saves_and_ends_with_the_numbers(agent):
    number = begin(agent, scheduling=wire.Scheduling(time_limit_s=0.5))
    until(lambda: agent.people.experiment(number).state == wire.CANCELED)
    view = agent.people.experiment(number)
    assert view.reason.startswith("its time limit of 0.5 s is up: it ran for ") and view.ran_s >= 0.5
    assert agent.held() == []


def test_paused_time_does_not_count_and_the_limit_can_be_changed(agent):
    number = begin(agent, scheduling=wire.Scheduling(time_limit_s=1000.0))
    ran_s = act(agent, number, "pause").ran_s
    until(lambda: not agent.held())
    assert 0.0 < agent.people.experiment(number).ran_s == ran_s < 1000.0
    act(agent, number, "activate")
    until(lambda: agent.people.experiment(number).ran_s > ran_s)
    with refused("time-limit-passed", Refused):
        set_limit(agent, number, ran_s / 2)
    assert set_limit(agent, number, 0.0).scheduling.time_limit_s == 0.0
    assert set_limit(agent, number, 900.0).state == wire.ACTIVE


def test_a_time_limit_survives_a_restart_of_the_coordinator(agent, frail):
    number = begin(agent, scheduling=wire.Scheduling(time_limit_s=5.0))
    before = agent.people.experiment(number).ran_s
    frail.kill()
    frail.start()
    assert agent.people.experiment(number).ran_s > before
    until(lambda: agent.people.experiment(number).state == wire.CANCELED)
    assert agent.people.experiment(number).reason.startswith("its time limit of 5 s is up")


JUMPS = """
import os, time
told = time.time
time.time = lambda: told() + (86_400.0 if os.path.exists({file!r}) else 0.0)
"""


def test_a_clock_that_is_set_costs_no_experiment_its_time(server_class, tmp_path):
    file = tmp_path / "set"
    server = server_class(tmp_path, str(tmp_path / "db"), before=JUMPS.format(file=str(file)))
    with BusyPool(server.url, server.token).joined() as agent:
        number = begin(agent, scheduling=wire.Scheduling(time_limit_s=3600.0))
        file.touch()
        assert agent.people.check().now > time.time() + 80_000
        assert agent.people.experiment(number).ran_s < 3600.0
        assert set_limit(agent, number, 1800.0).state == wire.ACTIVE
        paused = act(agent, number, "pause")
        assert (paused.state, paused.ran_s < 1800.0) == (wire.PAUSED, True)
    server.end()


def test_a_change_that_would_end_the_experiment_at_once_is_refused_with_the_numbers(agent):
    number = begin(agent, min_slots=1, max_slots=2, num_micro_batches=2)
    large = agent.people.create_experiment(spec(max_trials=1, min_slots=2, max_slots=2)).experiment
    with pytest.raises(Refused, match="needs 2 slots for a trial: max_slots of the experiment is 1") as error:
        agent.people.change(large, wire.ExperimentChange(max_slots=1))
    assert error.value.code == "change-ends-experiment"
    assert agent.people.experiment(large).state == wire.ACTIVE
    assert agent.people.change(number, wire.ExperimentChange(max_slots=1)).scheduling.max_slots == 1
    assert agent.people.change(large, wire.ExperimentChange(max_slots=2)).scheduling.max_slots == 2


def with_image(server, pool, image):
    agent = BusyPool(server.url, server.token, pool=pool)
    agent.environment = wire.NodeEnvironment(image=image)
    return agent


def test_an_image_that_the_pool_does_not_have_is_refused_with_the_pools_that_have_it(frail):
    with with_image(frail, "default", "train:1").joined() as agent, with_image(frail, "gpus", "train:2").joined():
        with refused("image-not-in-pool", Refused) as error:
            agent.people.create_experiment(spec(config={"image": "train:2"}))
        assert "nodes of pool default run train:1" in error.value.message
        assert "use a pool that has it: gpus" in error.value.message
        there = wire.Scheduling(pool="gpus")
        assert agent.people.create_experiment(spec(config={"image": "train:2"}, scheduling=there)).state == wire.ACTIVE
        here = agent.people.create_experiment(spec(config={"image": "train:1"})).experiment
        with refused("image-not-in-pool", Refused):
            agent.people.change(here, wire.ExperimentChange(pool="gpus"))
        assert agent.people.experiment(here).scheduling.pool == "default"
