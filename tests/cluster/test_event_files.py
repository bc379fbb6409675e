"""TensorBoard files of scripts that know nothing of Everstep become metrics of their job."""

from __future__ import annotations

import csv
import json
import signal
from pathlib import Path

from lab.command import EVERSTEP, Command, everstep, until

SCRIPT = Path(__file__).parent / "scripts" / "event_files.py"
PLAINLY = {"EVERSTEP_NURSERY": "off"}  # it needs no torch


def points(folder: Path, job: str, series: str) -> list[tuple[int, float, str]]:
    told = everstep("metrics", job, series, "--csv", folder=folder)
    return [
        (int(each["step"]), float(each["time"]), each["value"]) for each in csv.DictReader(told.stdout.splitlines())
    ]


def names(folder: Path, job: str) -> set[str]:
    told = json.loads(everstep("metrics", job, "--json", folder=folder).stdout)
    return {each["name"] for each in told if not each["name"].startswith("system/")}


def test_scalars_keep_names_steps_times_and_nan_and_no_other_processs_file_is_taken(tmp_path: Path) -> None:
    alone = everstep("run", "--job=other", "--log-dir=elsewhere", SCRIPT, 0, 9, folder=tmp_path, **PLAINLY)
    assert alone.returncode == 0, alone.stderr
    done = everstep("run", "--nproc-per-node=2", "--job=board", SCRIPT, 1, 6, folder=tmp_path, **PLAINLY)
    assert done.returncode == 0, done.stderr

    assert names(tmp_path, "board") == {"loss", "validation/loss", "w1/loss", "w1/validation/loss"}
    assert points(tmp_path, "board", "loss") == [
        (step, 1000.0 + step, "nan" if step == 3 else f"{step}.0") for step in range(1, 6)
    ]
    assert [value for _, _, value in points(tmp_path, "board", "w1/validation/loss")] == [
        f"-{step}.0" for step in range(1, 6)
    ]


def test_after_a_kill_of_the_agent_all_points_are_there_once_and_steps_trained_again_replace_the_old(
    tmp_path: Path,
) -> None:
    words = (*EVERSTEP, "run", "--job=board", SCRIPT)
    with Command(*words, 0, 40, "never", folder=tmp_path, **PLAINLY) as first:
        until(lambda: len(points(tmp_path, "board", "loss")) == 40, lambda: first.said)
        first.process.signal(signal.SIGKILL, is_for_group=False)
        first.process.wait()
    with Command(*words, 30, 50, folder=tmp_path, **PLAINLY) as second:
        second.until(lambda: second.process.wait(0) is not None, "its end")

    assert [step for step, _, _ in points(tmp_path, "board", "loss")] == list(range(50))
    kept = json.loads((tmp_path / "runs" / "board" / "event-files.json").read_text())
    assert {Path(path).stat().st_size for path in kept["files"]} == {each["at"] for each in kept["files"].values()}


def test_they_are_left_alone_if_asked(tmp_path: Path) -> None:
    done = everstep("run", "--job=board", SCRIPT, 1, 6, folder=tmp_path, EVERSTEP_TENSORBOARD="off", **PLAINLY)
    assert done.returncode == 0, done.stderr
    assert names(tmp_path, "board") == set()
