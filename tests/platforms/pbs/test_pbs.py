"""PBS: the stories of every platform, and a job inside an allocation, run by a small PBS of this machine."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from lab.command import run, until
from lab.contract import TRAINING, AnotherOfTheFamily, undisturbed
from lab.guide import follow
from lab.pbs.server import Lab
from lab.processes import processes_of
from lab.submitted import SCRIPT, Submitted


@pytest.fixture
def pbs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    lab = Lab(tmp_path_factory.mktemp("pbs"))
    lab.up()
    yield lab
    until(lambda: not lab.running(), lambda: f"still running: {lab.running()}")


class PbsPlace:
    scales = False

    def __init__(self, lab: Lab) -> None:
        self._lab = lab

    def job(self) -> Mapping[str, Any]:
        return {"platform": "pbs"}

    def env(self) -> Mapping[str, str]:
        return self._lab.env()

    def saves(self, folder: Path) -> tuple[str, Mapping[str, Any]]:
        uri = str(folder / "saved")
        return uri, {"checkpoint": uri}

    def leftovers(self, job_id: str) -> list[str]:
        return self._lab.running()


class TestPbs(AnotherOfTheFamily):
    @pytest.fixture
    def place(self, pbs: Lab) -> PbsPlace:
        return PbsPlace(pbs)

    def test_it_cannot_be_scaled_and_is_canceled(self, submit: Any, place: PbsPlace) -> None:
        job = submit(entrypoint=["train.py", "--steps", "100000"], nodes="1:2")
        job.wait_said(r"trains with")
        job.type("scale", job.id, "--nodes", "2", is_good=False)
        assert "running" in job.type("status", job.id)

        job.type("cancel", job.id)

        assert '"canceled"' in job.type("list", "--json")
        assert place.leftovers(job.id) == []
        until(lambda: not processes_of(job.id), lambda: f"left behind: {processes_of(job.id)}")

    def test_its_nodes_leave_before_the_walltime_is_up(self, submit: Any) -> None:
        # They leave after 12 s, and have 18 more to do so.
        job = submit(entrypoint=["train.py", "--steps", "100000"], time_limit="30s", checkpoint={"grace": 18}, nodes=2)
        said = job.type("watch", job.id, is_good=False)
        assert "the time is nearly up: leaving" in said
        assert "its walltime was up" in job.type("list", "--json")


def test_a_job_inside_an_allocation(pbs: Lab, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_bytes(SCRIPT.read_bytes())
    job = {"entrypoint": ["train.py", *TRAINING], "nodes": 2, "platform": {"pbs": {"mode": "allocation"}}}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    typed = f"cd {tmp_path}\nEVERSTEP_HOME={tmp_path / 'home'} {sys.executable} -m everstep run -f job.yaml --follow\n"
    done = run("qsub", "-I", "-l", "select=2:ncpus=1", folder=tmp_path, text=typed, **pbs.env())
    assert done.returncode == 0, done.stdout + done.stderr
    assert set(re.findall(r"digest (\w+)", done.stdout)) == {undisturbed()}


def test_there_is_no_allocation(pbs: Lab, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="not inside an allocation"):
        Submitted(tmp_path, {"entrypoint": "train.py", "platform": {"pbs": {"mode": "allocation"}}}, pbs.env())


def test_the_example_of_the_guide_runs(pbs: Lab, tmp_path: Path) -> None:
    seen = follow("pbs.md", tmp_path, pbs.env())
    assert {"node-0", "node-1"} == set(re.findall(r"^(\S+) \| \[w\d\] loss \d", seen, re.MULTILINE))
    assert re.search(r"first-\S+ succeeded: all 2 members left together", seen)
