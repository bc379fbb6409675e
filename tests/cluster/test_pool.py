"""A pool of real agents: trials on slots, and what happens to them when agents and the coordinator die."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest

from everstep import wire
from lab.command import EVERSTEP, run, until
from lab.pool_stage import LENGTH, PoolStage
from lab.processes import are_gone, nurseries_of, parent

PLAIN = {"EVERSTEP_NURSERY": "off"}  # no process with torch: these scripts need none


def test_a_trial_runs_on_a_slot_with_its_hyperparameters_and_ends(tmp_path: Path) -> None:
    """As forks of warm processes, as usual."""
    with PoolStage(tmp_path) as stage:
        stage.join(slots=2)
        experiment = stage.trials.create(3)
        view = stage.trials.wait_state(experiment, "COMPLETED", "ERROR")
        assert view.state == "COMPLETED", stage.trials.trials(experiment)
        found = {each.trial: each for each in stage.trials.trials(experiment)}
        starts = stage.trials.starts
        assert sorted(each["trial"] for each in starts) == [1, 2, 3]
        for start in starts:
            trial = found[start["trial"]]
            assert start["hyperparameters"] == trial.hparams
            assert start["lr"] == trial.hparams["lr"]
            assert start["threads"] == "1"
            assert start["facts"]["key"].endswith(f"-e{experiment}-t{trial.trial}")
            told = {name: start["facts"][name] for name in ("experiment", "trial_id", "seed", "metric", "unit")}
            assert told == {
                "experiment": experiment,
                "trial_id": trial.trial_id,
                "seed": trial.seed,
                "metric": "loss",
                "unit": "batches",
            }
            assert (trial.state, trial.length, trial.num_restarts) == ("COMPLETED", LENGTH, 0)
        assert len({each["folder"] for each in starts}) == 3, "each trial works in a folder of its own"
        assert len({each["code"] for each in starts}) == 1, "the code is on the node once"
        until(lambda: stage.trials.pool().num_free == 2)


@pytest.mark.parametrize("env", [PLAIN, {}], ids=["plain", "forked"])
def test_all_that_a_killed_agent_ran_ends_with_it_and_is_given_again(tmp_path: Path, env: dict[str, str]) -> None:
    with PoolStage(tmp_path, **env) as stage:
        stage.join()
        experiment = stage.trials.create(1, "--hold")
        (start,) = stage.trials.wait_starts(1)
        (held,) = stage.trials.held()
        stage.kill_agent("a")
        until(lambda: are_gone([start["pid"]]), lambda: "the worker outlives its agent")
        stage.join()
        stage.trials.wait_starts(2)
        (again,) = stage.trials.held()
        assert again.assignment > held.assignment
        stage.trials.let_go()
        assert stage.trials.wait_state(experiment, "COMPLETED", "ERROR").state == "COMPLETED"
        assert stage.trials.trials(experiment)[0].num_restarts == 0, "it is not the trial's failure"


def test_what_runs_goes_on_while_the_coordinator_is_dead_and_after_its_restart(tmp_path: Path) -> None:
    with PoolStage(tmp_path, **PLAIN) as stage:
        stage.join(slots=2)
        experiment = stage.trials.create(2, "--hold")
        starts = stage.trials.wait_starts(2)
        held = stage.trials.held()
        stage.kill_coordinator()
        stage.start_coordinator()
        until(lambda: stage.trials.pool().agents and stage.trials.pool().agents[0].is_present)
        assert stage.trials.held() == held
        stage.trials.let_go()
        assert stage.trials.wait_state(experiment, "COMPLETED", "ERROR").state == "COMPLETED"
        assert stage.trials.starts == starts, "no trial was started again"


def test_a_trial_that_waits_in_vain_for_the_coordinator_has_not_failed(tmp_path: Path) -> None:
    with PoolStage(tmp_path, EVERSTEP_NURSERY="off", EVERSTEP_COORDINATOR_DEADLINE_S="3") as stage:
        stage.join()
        experiment = stage.trials.create(1, "--hold", max_restarts=0)
        (start,) = stage.trials.wait_starts(1)
        stage.kill_coordinator()
        stage.coordinator.process.wait()
        until(lambda: len(list(stage.agent_folder("a").glob("assignments/*/run.json"))) == 1)
        killed_at = time.monotonic()
        until(lambda: time.monotonic() > killed_at + 3.0)
        stage.trials.let_go()
        until(lambda: are_gone([start["pid"]]))
        until(lambda: '"exit_code": 1' in next(stage.agent_folder("a").glob("assignments/*/run.json")).read_text())
        stage.start_coordinator()
        stage.trials.wait_state(experiment, "COMPLETED", "ERROR")
        (trial,) = stage.trials.trials(experiment)
        assert (trial.state, trial.num_restarts) == ("COMPLETED", 0), trial.reason


def test_a_paused_experiment_gives_its_slots_back_and_goes_on_when_it_is_activated(tmp_path: Path) -> None:
    with PoolStage(tmp_path, **PLAIN) as stage:
        stage.join()
        experiment = stage.trials.create(1, "--hold")
        (start,) = stage.trials.wait_starts(1)
        stage.trials.act(experiment, "pause")
        until(lambda: not stage.trials.held())
        assert (tmp_path / "saved-1").exists(), "it had time to save"
        assert are_gone([start["pid"]])
        stage.trials.let_go()
        stage.trials.act(experiment, "activate")
        assert stage.trials.wait_state(experiment, "COMPLETED", "ERROR").state == "COMPLETED"
        assert [each["trial"] for each in stage.trials.starts] == [1, 1]
        assert stage.trials.trials(experiment)[0].num_restarts == 0


def test_a_canceled_experiment_has_saved_when_it_ends(tmp_path: Path) -> None:
    with PoolStage(tmp_path, **PLAIN) as stage:
        stage.join()
        experiment = stage.trials.create(2, "--hold")
        (start,) = stage.trials.wait_starts(1)
        stage.trials.act(experiment, "cancel")
        assert stage.trials.wait_state(experiment, *wire.ENDED).state == "CANCELED"
        assert (tmp_path / "saved-1").exists() and are_gone([start["pid"]])
        assert {each.state for each in stage.trials.trials(experiment)} == {"CANCELED"}
        assert len(stage.trials.starts) == 1, "the second trial did not begin"


@pytest.mark.parametrize("env", [PLAIN, {}], ids=["plain", "forked"])
def test_a_killed_trial_ends_at_once(tmp_path: Path, env: dict[str, str]) -> None:
    with PoolStage(tmp_path, **env) as stage:
        stage.join()
        experiment = stage.trials.create(2, "--hold")
        (start,) = stage.trials.wait_starts(1)
        stage.trials.kill_trial(experiment, 1)
        until(lambda: are_gone([start["pid"]]), lambda: "it was not killed")
        assert not (tmp_path / "saved-1").exists()
        stage.trials.let_go()
        stage.trials.wait_state(experiment, "COMPLETED", "ERROR")
        states = {each.trial: each.state for each in stage.trials.trials(experiment)}
        assert states == {1: "CANCELED", 2: "COMPLETED"}


def test_two_agents_share_the_trials_and_one_that_leaves_hands_its_trial_to_the_other(tmp_path: Path) -> None:
    with PoolStage(tmp_path, **PLAIN) as stage:
        stage.join("a")
        stage.join("b")
        experiment = stage.trials.create(2, "--hold")
        stage.trials.wait_starts(2)
        assert {agent.agent: agent.slots[0].trial for agent in stage.trials.pool().agents} == {"a": 1, "b": 2}
        stage.agents["a"].signal(signal.SIGTERM)
        assert stage.agents["a"].exit_code() == 0
        assert (tmp_path / "saved-1").exists()
        assert [agent.agent for agent in stage.trials.pool().agents] == ["b"]
        stage.trials.let_go()
        assert stage.trials.wait_state(experiment, "COMPLETED", "ERROR").state == "COMPLETED"
        *first, last = (each["trial"] for each in stage.trials.starts)
        assert (sorted(first), last) == ([1, 2], 1)
        assert {each.num_restarts for each in stage.trials.trials(experiment)} == {0}


def test_a_script_that_fails_is_tried_again_as_often_as_it_may_be(tmp_path: Path) -> None:
    with PoolStage(tmp_path, **PLAIN) as stage:
        stage.join()
        experiment = stage.trials.create(1, "--fail", max_restarts=2)
        stage.trials.wait_state(experiment, "COMPLETED", "ERROR")
        (trial,) = stage.trials.trials(experiment)
        assert trial.state == "ERROR"
        assert len(stage.trials.starts) == 3


def test_the_reason_of_a_failed_trial_is_the_last_line_of_its_error(tmp_path: Path) -> None:
    with PoolStage(tmp_path, **PLAIN) as stage:
        stage.join()
        experiment = stage.trials.create(1, "--read", "nowhere.txt", max_restarts=0)
        stage.trials.wait_state(experiment, "COMPLETED", "ERROR")
        (trial,) = stage.trials.trials(experiment)
        assert "FileNotFoundError: [Errno 2] No such file or directory: 'nowhere.txt'" in trial.reason


@pytest.mark.parametrize("kind", ["workers", "nodes"])
def test_a_killed_fork_server_is_no_failure_of_its_trials(tmp_path: Path, kind: str) -> None:
    with PoolStage(tmp_path) as stage:
        agent = stage.join()
        experiment = stage.trials.create(1, "--hold", max_restarts=0)
        (start,) = stage.trials.wait_starts(1)
        server = parent(start["pid"]) if kind == "workers" else nurseries_of(agent.process.pid)[0]
        os.kill(server, signal.SIGKILL)
        stage.trials.wait_starts(2)
        stage.trials.let_go()
        assert stage.trials.wait_state(experiment, "COMPLETED", "ERROR").state == "COMPLETED"
        (trial,) = stage.trials.trials(experiment)
        assert trial.num_restarts == 0


def test_an_argument_with_an_unknown_hyperparameter_fails_with_its_name(tmp_path: Path) -> None:
    with PoolStage(tmp_path, **PLAIN) as stage:
        stage.join()
        experiment = stage.trials.create(1, "{momentum}", max_restarts=0)
        stage.trials.wait_state(experiment, "COMPLETED", "ERROR")
        (trial,) = stage.trials.trials(experiment)
        assert trial.state == "ERROR"
        assert "momentum" in trial.reason


def test_a_second_agent_of_the_same_name_is_refused_here(tmp_path: Path) -> None:
    with PoolStage(tmp_path, **PLAIN) as stage:
        stage.join("a")
        words = ("--coordinator", stage.url, "--token-file", stage.token_file, "--name", "a")
        home = str(tmp_path / "home")
        second = run(*EVERSTEP, "pool", "join", *words, folder=tmp_path, EVERSTEP_HOME=home)
        assert second.returncode == 2
        assert "--name" in second.stderr
        listed = run(*EVERSTEP, "pool", "list", *words[:4], folder=tmp_path)
        assert "1 of 1 slots free" in " ".join(listed.stdout.split())


def test_a_node_that_cannot_start_trials_leaves_and_they_run_elsewhere(tmp_path: Path) -> None:
    with PoolStage(tmp_path, **PLAIN) as stage:
        bad = stage.join("bad", slots=2)
        (stage.agent_folder("bad") / "trials").write_text("no folder can be made here")
        experiment = stage.trials.create(3, max_restarts=0)
        assert bad.exit_code() == 1
        assert "could not start 3 trials in a row, and leaves the pool" in bad.said and "Not a directory" in bad.said
        assert stage.trials.pool().agents == []
        until(  # the pool may still have to settle what it was told last
            lambda: any("before: bad could not start it: " in each.reason for each in stage.trials.trials(experiment)),
            lambda: f"{stage.trials.trials(experiment)}",
        )
        assert "Not a directory" in "".join(
            each.read_text() for each in stage.agent_folder("bad").glob("assignments/*/end.txt")
        )
        stage.join("good")
        assert stage.trials.wait_state(experiment, "COMPLETED", "ERROR").state == "COMPLETED"
        assert [each.num_restarts for each in stage.trials.trials(experiment)] == [0, 0, 0]


def test_a_failing_line_of_setup_is_the_trials_own_failure(tmp_path: Path) -> None:
    with PoolStage(tmp_path, **PLAIN) as stage:
        node = stage.join()
        experiment = stage.trials.create(4, max_restarts=0, setup=["false"])
        stage.trials.wait_state(experiment, "COMPLETED", "ERROR")
        assert {each.state for each in stage.trials.trials(experiment)} == {"ERROR"}
        assert node.process.wait(0) is None and stage.trials.pool().num_slots == 1, "the node is fit"


NO_WORKER = 'mkdir -p "$(dirname "$EVERSTEP_EXPERIMENT")"/w{0..9}/board'  # where a file of the worker would be


@pytest.mark.parametrize(("lost", "reason"), [("worker", r"w\d+ cannot be started"), ("code", "there is no code")])
def test_a_worker_that_cannot_be_started_is_no_failure_of_its_trial(tmp_path: Path, lost: str, reason: str) -> None:
    with PoolStage(tmp_path, **PLAIN) as stage:
        experiment = stage.trials.create(1, max_restarts=0, setup=[NO_WORKER] if lost == "worker" else [])
        if lost == "code":
            for each in (tmp_path / "kept-code").iterdir():
                each.unlink()
        node = stage.join()
        assert node.exit_code() == 1
        assert re.search(f"leaves the pool: .*{reason}", node.said), node.said
        # The pool may still have to settle what it was told last.
        until(lambda: not stage.trials.held(), lambda: f"{stage.trials.pool()}")
        (trial,) = stage.trials.trials(experiment)
        assert (trial.state, trial.num_restarts) == ("QUEUED", 0) and re.search(reason, trial.reason), trial.reason
