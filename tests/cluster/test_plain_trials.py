"""Scripts that know nothing of Everstep as trials: what they print is their result."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from lab.command import ROOT, Shell
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
