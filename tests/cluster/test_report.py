"""Any script may report: what it said is there while its job runs, and when it is over."""

from __future__ import annotations

import csv
import json
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from everstep.launcher.local_coordinator import CoordinatorFiles, start_coordinator
from lab import guide
from lab.command import everstep, run

SCRIPT = Path(__file__).parent / "scripts" / "report.py"
PLAINLY = {"EVERSTEP_NURSERY": "off"}  # it needs no torch


def test_a_plain_script_reports_and_what_it_trains_again_replaces_the_old(tmp_path: Path) -> None:
    done = everstep(
        "run", "--nproc-per-node=2", "--max-restarts=1", "--job=plain", SCRIPT, folder=tmp_path, **PLAINLY
    )  # fmt: skip
    assert done.returncode == 0, done.stderr

    table = everstep("metrics", "plain", folder=tmp_path)
    assert table.returncode == 0, table.stderr
    assert [word for line in table.stdout.splitlines() if "loss" in line for word in line.split() if word != "│"] == [
        "loss", "7", "0", "7", "8", "7",
    ]  # fmt: skip
    points = list(csv.DictReader(everstep("metrics", "plain", "loss", "--csv", folder=tmp_path).stdout.splitlines()))
    assert [(each["step"], each["value"]) for each in points] == [
        *((str(step), f"{step}.0") for step in range(6)), ("6", "nan"), ("7", "7.0"),
    ]  # fmt: skip
    series = json.loads(everstep("metrics", "plain", "--json", folder=tmp_path).stdout)
    assert {each["name"]: (each["most"], each["nans"]) for each in series} == {"loss": (7.0, 1), "rank": (0.0, 0)}

    narrow = ("--from", "2", "--to", "5", "--json", "--points", "10")
    (window,) = json.loads(everstep("metrics", "plain", "loss", *narrow, folder=tmp_path).stdout)
    assert (window["first_steps"], window["firsts"], window["num_points"]) == ([2, 3, 4], [2.0, 3.0, 4.0], 3)
    unknown = everstep("metrics", "plain", "accuracy", folder=tmp_path)
    assert unknown.returncode != 0 and "there are loss, rank" in unknown.stderr

    (page,) = guide.blocks("../metrics.md", "bash")
    said = guide.type_in(page.replace("JOB", "plain"), tmp_path, {})
    assert "step,time,value" in said and '"num_points": 8' in said


TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--max-restarts=1")


def test_in_workers_that_torchrun_starts_and_our_coordinator_brings_together(tmp_path: Path) -> None:
    with ExitStack() as stack:
        coordinator, url = start_coordinator(CoordinatorFiles(directory=tmp_path))
        stack.callback(coordinator.kill)
        token = {"EVERSTEP_TOKEN_FILE": str(tmp_path / "token"), "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
        at = ("--rdzv-backend=everstep", f"--rdzv-endpoint={url.removeprefix('http://')}", "--rdzv-id=plain")
        done = run(*TORCHRUN, *at, SCRIPT, folder=tmp_path, **token)
        assert done.returncode == 0, done.stderr

        told = everstep("metrics", "plain", "loss", "--coordinator", url, folder=tmp_path, **token)
        points = list(csv.DictReader(told.stdout.splitlines()))
        assert [(each["step"], each["value"]) for each in points] == [
            *((str(step), f"{step}.0") for step in range(6)), ("6", "nan"), ("7", "7.0"),
        ]  # fmt: skip


@pytest.mark.parametrize("words", [(*TORCHRUN, "--standalone"), (sys.executable,)], ids=["torchrun", "python"])
def test_outside_a_job_the_same_script_runs_and_keeps_nothing(words: tuple[str, ...], tmp_path: Path) -> None:
    alone = {"RANK": "1", "TORCHELASTIC_RESTART_COUNT": "1"} if len(words) == 1 else {}
    done = run(*words, SCRIPT, folder=tmp_path, **alone)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.iterdir() if path.name != "home"] == []
