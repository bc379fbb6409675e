"""Any script may report: what it said is there while its job runs, and when it is over."""

from __future__ import annotations

import csv
import json
from pathlib import Path

from lab import guide
from lab.command import everstep

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
