"""Trials in real worlds: whoever comes, goes or dies, weights and reported metrics are those of one process alone."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import everstep
from everstep.testing import Result
from everstep.testing.tape import Event
from everstep.wire import Policy
from lab import nest
from lab.command import Command
from lab.first_body import check_join, warm
from lab.patience import PATIENT
from lab.stage import SCRIPTS, Stage, undisturbed_events
from lab.unequal_machines import JOIN_AT, MICRO_BATCHES, PAUSES, check_shares, kill_and_join

TRIAL = "trial.py"
EAGER = replace(PATIENT, heartbeat_s=0.3)
STRICT = Policy(heartbeat_s=0.3, lease_s=6.0, arrive_s=60.0, stall_s=60.0)
WHOLE = [3, 6, 9, 12]  # batches at which there are reports
VALIDATIONS = [4, 8, 12]


def facts(event: Event) -> dict[str, Any]:
    return {name: value for name, value in event.items() if name in ("average", "batches", "lr", "metrics", "state")}


def audit(events: list[Event], *args: object, deaths: int = 0, since: int = 0) -> None:
    """Every report and validation of any worker is that of one process alone, and none is missing. With a dead worker
    its part of the metrics of one batch may have gone, which no other knew yet."""
    alone = undisturbed_events(TRIAL, *map(str, args))
    for kind in ("validation", "report"):
        expected = {event["step"]: facts(event) for event in alone if event["event"] == kind}
        found = [event for event in events if event["event"] == kind]
        assert {event["step"] for event in found} == {step for step in expected if step > since}
        incomplete = set()
        for event in found:
            if kind == "validation" or not deaths:
                assert facts(event) == expected[event["step"]], f"{kind} at batch {event['step']}"
                continue
            first = event["step"] - len(event["batches"])
            pairs = zip(event["batches"], expected[event["step"]]["batches"], strict=True)
            incomplete |= {first + number for number, (mine, right) in enumerate(pairs) if mine != right}
        assert len(incomplete) <= deaths, f"metrics of batches {sorted(incomplete)}"


def start(*args: object, policy: Policy = EAGER, **settings: Any) -> Stage:
    return Stage(*args, script=TRIAL, policy=policy, **settings)


def test_two_workers_are_one() -> None:
    with start(workers=2) as cluster:
        result = cluster.finish_undisturbed()
    audit(result.all_events)
    assert {event["worker"] for event in result.events("evaluated")} == {"w0", "w1"}, "validation is shared"
    evaluated = [(event["step"], event["batch"]) for event in result.events("evaluated")]
    assert len(evaluated) == len(set(evaluated)), "each batch is evaluated once"


@pytest.mark.parametrize("victim", ["w0", "w1"])
def test_a_death_while_the_others_wait_for_the_sum(victim: str) -> None:
    """In the middle of a collective: all but the victim have sent what they have."""
    with start("--gate-worker", victim, gates=[5], workers=3) as cluster:
        cluster.wait_at_gate(5, victim)
        cluster.kill(victim)
        result = finish(cluster)
    audit(result.all_events, deaths=1)


def test_deaths_in_training_one_after_the_other() -> None:
    with start(gates=[4, 8], workers=3) as cluster:
        cluster.wait_at_gate(4, "w0", "w1", "w2")
        cluster.kill("w0")
        cluster.open_gate(4)
        cluster.wait_at_gate(8, "w1", "w2")
        cluster.kill("w2")
        cluster.open_gate(8)
        result = finish(cluster)
    audit(result.all_events, deaths=2)


@pytest.mark.parametrize("victim", ["w0", "w1"])
def test_a_death_in_validation(victim: str) -> None:
    with start(gates=[1008], workers=3) as cluster:
        cluster.wait_at_gate(1008, "w0", "w1", "w2")
        cluster.kill(victim)
        cluster.open_gate(1008)
        result = finish(cluster)
    audit(result.all_events, deaths=1)
    survivors = {"w0", "w1", "w2"} - {victim}
    evaluated = [e["batch"] for e in result.events("evaluated", step=8) if e["worker"] in survivors]
    assert sorted(evaluated) == list(range(6)), "only what was lost is evaluated again"


def test_a_death_in_a_callback_after_a_validation() -> None:
    """The victim has told nobody that it has come so far."""
    with start("--gate-worker", "w0", gates=[2004], workers=3) as cluster:
        cluster.wait_at_gate(2004, "w0")
        cluster.kill("w0")
        result = finish(cluster)
    audit(result.all_events, deaths=1)


@pytest.mark.parametrize(("batch", "victim"), [(5, "w0"), (12, "w1"), (12, "w0")])
def test_a_death_as_a_checkpoint_is_saved(batch: int, victim: str) -> None:
    """Also the last one, which must be there at the end."""
    with start("--gate-worker", victim, gates=[3000 + batch], workers=3) as cluster:
        cluster.wait_at_gate(3000 + batch, victim)
        cluster.kill(victim)
        result = finish(cluster)
        with everstep.Checkpointer(next(cluster.directory.glob("runs/*/*/checkpoints"))) as checkpointer:
            assert checkpointer.load()["progress"]["now"]["batches"] == 12
    audit(result.all_events, deaths=1)


@pytest.mark.parametrize("gate", [5, 1008, 2008])
def test_newcomers_in_training_and_in_validation(gate: int) -> None:
    with start(gates=[gate], workers=1) as cluster:
        cluster.wait_at_gate(gate)
        cluster.wait_ready(*cluster.add(2))
        cluster.open_gate(gate)
        result = finish(cluster)
    audit(result.all_events)
    assert {event["size"] for event in result.events("step.committed")} == {1, 3}


def test_the_others_keep_training_while_a_newcomer_runs_its_first_body() -> None:
    with start(gates=[2, 6, "first-w2"], workers=2) as cluster:
        warm(cluster, "w2", since=2, until=6)
        result = cluster.finish_undisturbed()
    check_join(result, "w2", since=2, until=6)
    audit(result.all_events)


def test_a_frozen_worker_is_left_behind() -> None:
    with start(gates=[7], workers=3, policy=STRICT) as cluster:
        cluster.wait_at_gate(7, "w0", "w1", "w2")
        cluster.freeze("w1")
        cluster.open_gate(7)
        result = finish(cluster)
    audit(result.all_events, deaths=1)


def test_a_stop_that_one_worker_asks_for_stops_all_at_the_same_batch() -> None:
    with start("--stop", "w1@5", workers=3) as cluster:
        result = cluster.finish()
    assert {event["steps"] for event in result.outputs} <= {6, 7}
    assert len(result.outputs) == 3 and len({event["steps"] for event in result.outputs}) == 1
    last = result.outputs[0]["steps"]
    assert {event["worker"] for event in result.events("validation", step=last)} == {"w0", "w1", "w2"}
    weights = {e["step"]: e["digest"] for e in undisturbed_events(TRIAL) if e["event"] == "weights"}
    assert result.weights_digest[:16] == weights[last]


def test_an_exception_in_one_worker_is_as_its_death() -> None:
    with start("--fail", "w1@6", workers=3) as cluster:
        result = cluster.finish(check=False)
    finished = {event["worker"] for event in result.outputs}
    assert "w1" not in finished
    if finished:
        audit(result.all_events, deaths=1)


# --- from one run to the next ---


def test_another_number_of_workers_in_each_run(tmp_path: Path) -> None:
    kept = ("--folder", tmp_path / "kept")
    alone = undisturbed_events(TRIAL)
    events: list[Event] = []
    for workers, batches in ((2, 5), (3, 10), (1, 12)):
        with start(*kept, "--batches", batches, workers=workers) as cluster:
            result = cluster.finish()
        events += result.all_events
    expected = {event["step"]: event["digest"] for event in alone if event["event"] == "weights"}
    found = {event["step"]: event["digest"] for event in events if event["event"] == "weights"}
    assert found == expected
    assert sorted(found) == list(range(1, 13))
    (end,) = (event for event in alone if event["event"] == "result")
    assert result.weights_digest == end["weights_digest"]


def test_all_are_killed_and_others_go_on_from_the_last_checkpoint(tmp_path: Path) -> None:
    kept = ("--folder", tmp_path / "kept")
    with start(*kept, gates=[8], workers=2) as cluster:
        cluster.wait_at_gate(8, "w0", "w1")
        cluster.wait("checkpoint.written", step=5)
        cluster.kill("w0")
        cluster.kill("w1")
        cluster.finish(check=False)
    with start(*kept, workers=3) as cluster:
        result = cluster.finish()

    (end,) = (event for event in undisturbed_events(TRIAL) if event["event"] == "result")
    assert result.weights_digest == end["weights_digest"]
    assert min(event["step"] for event in result.events("weights")) == 6
    validations = {e["step"]: facts(e) for e in undisturbed_events(TRIAL) if e["event"] == "validation"}
    for event in result.events("validation"):
        assert facts(event) == validations[event["step"]]


@pytest.mark.parametrize("number", [1, 2, 4, 6])
def test_kill_9_in_the_middle_of_writing_a_checkpoint(number: int, tmp_path: Path) -> None:
    """One process alone, killed by itself; started again, it goes on from the last whole checkpoint, or anew."""
    died = run_alone(tmp_path, "--die-at-fsync", number)
    assert died.exit_code() == -9, died.said
    run_alone(tmp_path).finish()

    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    (told,) = (event for event in events if event["event"] == "result")
    (end,) = (event for event in undisturbed_events(TRIAL) if event["event"] == "result")
    assert told["weights_digest"] == end["weights_digest"]


def run_alone(folder: Path, *args: object) -> Command:
    told = {"EVERSTEP_EVENTS": str(folder / "events.jsonl")}
    with Command(sys.executable, SCRIPTS / TRIAL, *args, folder=folder, start=nest.start_script, **told) as alone:
        alone.exit_code()
    return alone


def finish(cluster: Stage) -> Result:
    """As of one process alone, which knows nothing of whom a gate holds."""
    (end,) = (event for event in undisturbed_events(TRIAL) if event["event"] == "result")
    expected = {event["step"]: event["digest"] for event in undisturbed_events(TRIAL) if event["event"] == "weights"}
    result = cluster.finish()
    for event in result.events("weights"):
        assert event["digest"] == expected[event["step"]], f"other weights than alone: {event}"
    assert result.weights_digest == end["weights_digest"]
    assert {event["lr"] for event in result.outputs} == {end["lr"]}
    return result


def test_a_slow_worker_gets_fewer_micro_batches_and_the_trial_is_the_same() -> None:
    args = ("--samples", 4 * MICRO_BATCHES * 9 - 20, "--micro-batches", MICRO_BATCHES, "--batches", 28)
    with start(*args, gates=[JOIN_AT], workers=3, env=PAUSES) as cluster:
        kill_and_join(cluster)
        result = cluster.finish_undisturbed()
    audit(result.all_events, *args, deaths=1)
    check_shares(result, "micro_batch")
