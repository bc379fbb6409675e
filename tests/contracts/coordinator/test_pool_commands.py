"""`everstep agent`, `queue` and `pool list`, as people type them, at a real coordinator."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from everstep import wire
from lab.command import Shell, until
from lab.experiments import BusyPool, spec


@pytest.fixture
def shell(tmp_path: Path, server: Any) -> Shell:
    return Shell(tmp_path, EVERSTEP_COORDINATOR=server.url, EVERSTEP_TOKEN_FILE=str(server.token_file))


@pytest.fixture
def agent(server: Any) -> Iterator[BusyPool]:
    with BusyPool(server.url, server.token, "a100", name="n1", num_slots=1).joined() as agent:
        yield agent


def create(agent: BusyPool, num_trials: int, **scheduling: Any) -> int:
    """Its first trial has the slot, if that is free."""
    made = spec(max_trials=num_trials, name="work", scheduling=wire.Scheduling(**scheduling))
    number = agent.people.create_experiment(made).experiment
    until(lambda: len(agent.held()) == 1 and agent.people.queue("default").num_waiting > 0)
    return number


def test_nodes_are_drained_disabled_and_enabled(shell: Shell, agent: BusyPool) -> None:
    create(agent, 2)
    assert "n1" in shell.type("agent", "list")
    (told,) = json.loads(shell.type("agent", "list", "--json"))
    assert (told["pool"], told["agent"], told["kind"], told["state"]) == ("default", "n1", "a100", "enabled")
    said = shell.type("agent", "disable", "n1", "--reason", "for repair")
    assert said == "n1: disabled, its trials keep 1 slot\n"
    assert "for repair" in shell.type("agent", "list")
    assert shell.type("agent", "drain", "--all").startswith("n1: draining")
    (told,) = json.loads(shell.type("agent", "enable", "n1", "--json"))
    assert (told["state"], told["state_reason"]) == ("enabled", "")

    shell.type("agent", "drain", "n1", "n7", is_good=False)
    assert "pool default has no node n7; it has n1" in shell.last.stderr
    shell.type("agent", "drain", "--reason", "x", is_good=False)
    assert "give the names of nodes, or --all" in shell.last.stderr


def test_a_pool_is_listed_with_what_runs_on_its_slots(shell: Shell, agent: BusyPool) -> None:
    number = create(agent, 2)
    said = shell.type("pool", "list")
    assert "pool default: 1 node, 0 of 1 slots free, 1 trial waiting" in said
    assert f"experiment {number}, trial 1" in said and "a100" in said
    told = json.loads(shell.type("pool", "list", "--pool", "default", "--json"))
    (slot,) = told["agents"][0]["slots"]
    assert (slot["experiment"], slot["trial"], slot["state"]) == (number, 1, "given") and slot["reason"]
    assert [each["pool"] for each in json.loads(shell.type("pool", "list", "--json"))] == ["default"]


def test_the_queue_is_listed_and_changed(shell: Shell, agent: BusyPool) -> None:
    number = create(agent, 2, priority=60)
    said = shell.type("queue", "list")
    assert "pool default: 1 trial waiting" in said and "1 running, 1 waiting" in said
    view = json.loads(shell.type("queue", "list", "--pool", "default", "--json"))
    (entry,) = view["entries"]
    assert (entry["experiment"], entry["priority"], entry["num_held"]) == (number, 60, 1) and entry["reason"]
    trials = json.loads(shell.type("e", "list-trials", str(number), "--json"))
    assert trials[1]["reason"] == entry["reason"]
    assert entry["reason"][:20] in shell.type("e", "describe", str(number))

    said = shell.type("queue", "update", str(number), "--priority", "3", "--weight", "2")
    assert said == f"experiment {number}: pool default, priority 3, weight 2\n"
    shell.type("queue", "update", str(number), is_good=False)
    assert "give --priority, --weight or --pool" in shell.last.stderr
    shell.type("queue", "update", str(number), "--priority", "100", is_good=False)
    assert "1<=x<=99" in shell.last.stderr


def test_a_pool_without_nodes_is_listed_while_an_experiment_waits_for_it(shell: Shell, agent: BusyPool) -> None:
    agent.people.create_experiment(spec(name="lost", scheduling=wire.Scheduling(pool="misspelled")))
    until(lambda: agent.people.queue("misspelled").num_waiting > 0)
    said = shell.type("queue", "list")
    assert "pool misspelled: 4 trials waiting" in said and "the pool has 0 now" in said
    assert "pool misspelled: 0 nodes" in shell.type("pool", "list")


def test_the_share_of_an_experiment_is_set_by_determineds_verbs(shell: Shell, agent: BusyPool) -> None:
    number = str(create(agent, 2))
    shell.type("e", "set", "priority", number, "10")
    shell.type("e", "set", "weight", number, "0.5")
    said = shell.type("e", "set", "max-slots", number, "4")
    assert said == f"experiment {number}: pool default, priority 10, weight 0.5, at most 4 slots\n"
    told = json.loads(shell.type("e", "set", "max-slots", number, "0", "--json"))["scheduling"]
    assert (told["priority"], told["weight"], told["max_slots"]) == (10, 0.5, 0)
    assert re.search(r"weight 0.5, ran \d+ of 5400 s", shell.type("e", "set", "time-limit", number, "1h30m"))
    shell.type("e", "set", "time-limit", number, "0.001", is_good=False)
    assert "would end it at once" in shell.last.stderr
    assert shell.type("e", "set", "time-limit", number, "none").endswith("weight 0.5\n")
    assert "priority 10, weight 0.5" in shell.type("e", "describe", number)


def test_what_is_unusual_is_said_when_an_experiment_is_created(shell: Shell, agent: BusyPool) -> None:
    (shell.folder / "train.py").touch()
    text = "entrypoint: train.py\nsearcher: {name: single, metric: loss}\nresources: {priority: 7, max_slots: 2}\n"
    (shell.folder / "exp.yaml").write_text(text)
    assert "priority 7, at most 2 slots" in shell.type("e", "create", "exp.yaml", ".", "--paused")


def test_without_a_coordinator_they_say_where_they_looked(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    assert shell.type("queue", "list") == ""
    assert "the local service is not running" in shell.last.stderr
    shell.type("agent", "drain", "--all", is_good=False)
