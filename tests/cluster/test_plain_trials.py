"""Scripts that know nothing of Everstep as trials: what they print is their result."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from everstep import wire
from everstep.client.calls import Coordinator
from everstep.env import read_token
from lab.command import ROOT, Shell, until
from lab.pool_stage import LENGTH, PoolStage
from lab.processes import are_gone

EXAMPLE = ROOT / "examples" / "experiments"
IMAGES = ROOT / "examples" / "data" / "fashion-mnist-8k.npz"

ENDLESS = r"""
import argparse, itertools, os, time
parser = argparse.ArgumentParser()
parser.add_argument("--folder")
parser.add_argument("--lr", type=float)
options = parser.parse_args()
open(f"{options.folder}/pid-{os.getpid()}", "w").close()
for step in itertools.count(1):
    print(f"step {step}: loss={options.lr / step:.5f}", flush=True)
    time.sleep(0.02)
"""
LINE = r"step (?P<step>\d+): loss=(?P<metric>\S+)"


def test_a_script_that_never_ends_is_stopped_when_it_has_printed_the_length_of_its_trial(tmp_path: Path) -> None:
    with PoolStage(tmp_path, EVERSTEP_NURSERY="off") as stage:
        stage.join(slots=2)
        experiment = stage.trials.create(2, script=ENDLESS, config={"metric_line": LINE})
        assert stage.trials.wait_state(experiment, "COMPLETED", "ERROR").state == "COMPLETED"
        for trial in stage.trials.trials(experiment):
            assert (trial.state, trial.num_restarts) == ("COMPLETED", 0), trial
            assert trial.length >= LENGTH
            assert trial.best is not None
        assert are_gone([int(each.name[4:]) for each in tmp_path.glob("pid-*")])
        assert len(list(tmp_path.glob("pid-*"))) == 2, "no trial was started again"


def test_the_plain_example_has_results_and_a_winner(tmp_path: Path) -> None:
    shell = Shell(tmp_path, EVERSTEP_LOCAL_SLOTS="2", EVERSTEP_LOCAL_IDLE_S="600")
    shutil.copytree(EXAMPLE, tmp_path / "code")
    try:
        said = shell.type("e", "create", "code/plain.yaml", "code", "--include", str(IMAGES))
        assert "best: trial 2" in said
        rows = json.loads(shell.type("e", "list-trials", "1", "--json"))
        assert [(each["state"], each["length"], each["num_restarts"]) for each in rows] == [("COMPLETED", 32, 0)] * 4
    finally:
        shell.type("pool", "stop")


LONG = r"""
import argparse, pathlib
parser = argparse.ArgumentParser()
parser.add_argument("--folder", type=pathlib.Path)
parser.add_argument("--lr", type=float)
folder = parser.parse_args().folder
number = len(list(folder.glob("ran-*"))) + 1
if number == 1:  # more than a coordinator takes in a minute
    print("step 1: loss=2.0\n" * 40_000, flush=True)
print("step 8: loss=1.0", flush=True)
(folder / f"ran-{number}").touch()
"""


def test_what_a_script_printed_before_its_end_is_not_lost_if_the_coordinator_is_away_too_long(tmp_path: Path) -> None:
    """Its job is over before all results are delivered: only its node knows, and has the trial repeated."""
    with PoolStage(tmp_path, EVERSTEP_NURSERY="off", EVERSTEP_COORDINATOR_DEADLINE_S="3") as stage:
        stage.join()
        experiment = stage.trials.create(1, script=LONG, config={"metric_line": LINE}, max_restarts=0)
        with Coordinator(stage.url, read_token(stage.token_file), wire.trial_job(experiment, 1)) as job:
            until((tmp_path / "ran-1").exists)
            until(lambda: job.view(is_brief=True).is_finished)
        stage.kill_coordinator()
        stage.coordinator.process.wait()
        until(lambda: list(stage.agent_folder("a").glob("assignments/*/end.txt")))
        stage.start_coordinator()
        assert stage.trials.wait_state(experiment, "COMPLETED", "ERROR").state == "COMPLETED"
        (trial,) = stage.trials.trials(experiment)
        assert (trial.length, trial.latest, trial.num_restarts) == (LENGTH, 1.0, 0)
        assert (tmp_path / "ran-2").exists()
