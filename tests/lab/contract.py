"""What every platform must do with a job. A platform's tests give a `place` and inherit the stories.

Some ideas are the same for a family of platforms: processes, containers, queues, a cloud. `make test` runs them on one
of each family, `make test-long` on all."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import pytest
import yaml

from lab.command import ROOT, everstep, until
from lab.length import usual
from lab.processes import processes_of
from lab.submitted import Submitted, digest_after

AWKWARD = ["two words", "it's", 'a "quote"', "new\nline", "$HOME `id` \\", "", "-x", "ünï"]
RECORDED = ROOT / "tests" / "platforms" / "scripts" / "recorded.py"
TRAINING = ["--steps", "60", "--pace", "0.02"]


def undisturbed() -> str:
    return digest_after(60)


class Place(Protocol):
    """A place that jobs are submitted to in a test."""

    scales: bool  # whether nodes can be added and removed

    def job(self) -> Mapping[str, Any]:
        """The keys that a job file needs here: platform, image, volumes, …"""

    def env(self) -> Mapping[str, str]:
        """Variables for the commands: KUBECONFIG, DOCKER_HOST, PATH, …"""

    def saves(self, folder: Path) -> tuple[str, Mapping[str, Any]]:
        """A place for checkpoints that outlives the nodes and that the submitter can read: its URI, the same for both,
        and the keys that a job file needs for it. `folder`: of the test, on the submitter's machine."""

    def leftovers(self, job_id: str) -> list[str]:
        """The remains of a finished job on the platform, but for its record."""


class PlatformContract:
    @pytest.fixture
    def submit(self, place: Place, tmp_path: Path) -> Iterator[Any]:
        started: list[Submitted] = []

        def submit(**job: Any) -> Submitted:
            started.append(Submitted(tmp_path, _merged(place.job(), job), place.env()))
            return started[-1]

        yield submit
        for each in started:
            each.close()

    def test_a_worker_dies_and_the_job_finishes_with_the_right_weights(self, submit: Any, tmp_path: Path) -> None:
        (tmp_path / "password").write_text("hunter2hunter2\n")
        job = submit(
            entrypoint=["train.py", *TRAINING, "--die", "20", *AWKWARD],
            nodes=2,
            backend="gloo",
            env={"GREETING": "good\nday"},
            secrets={"PASSWORD": f"file:{tmp_path / 'password'}"},
        )
        job.wait_size(2)
        said = job.finish()

        assert set(re.findall(r"digest (\w+)", said)) == {undisturbed()}
        assert re.search(r"w\d+ ended: killed by SIGKILL", said)
        assert repr(AWKWARD) in said
        assert "greeting 'good\\nday'" in said
        assert "gradients over 'gloo'" in said
        assert "secret of 14 letters" in said
        assert "hunter2" not in said + job.type("show-config", job.id) + (tmp_path / "info.yaml").read_text()
        assert f"{job.id}" in job.type("list", "--json")
        one = re.findall(r"\[w(\d+)\] digest", said)[0]
        only = job.type("logs", job.id, "--worker", f"w{one}")
        assert only and all(line.startswith(f"[w{one}] ") for line in only.splitlines())
        until(lambda: not processes_of(job.id), lambda: f"left behind: {processes_of(job.id)}")

    def test_metrics_logs_and_checkpoints_are_there_when_all_its_nodes_are_gone(
        self, submit: Any, place: Place, tmp_path: Path
    ) -> None:
        shutil.copy(RECORDED, tmp_path)
        uri, keys = place.saves(tmp_path)
        job = submit(entrypoint=["recorded.py", uri], nodes=2, **keys)
        job.finish()
        until(lambda: "record in " in job.said or not processes_of(job.id), lambda: job.said)
        job.type("cancel", job.id)  # removes what is left of it
        assert place.leftovers(job.id) == []
        shutil.rmtree(tmp_path / "runs" / job.id, ignore_errors=True)

        head, *points = job.type("metrics", job.id, "loss").splitlines()
        assert head == "step,time,value"
        assert [point.partition(",")[0] for point in points] == [str(step) for step in range(1, 11)]
        printed = job.type("logs", job.id, "--grep", "made step 10").splitlines()
        assert printed and all(line.endswith("made step 10") for line in printed)
        saved = json.loads(job.type("checkpoint", "list", uri, "--json"))
        assert [each["step"] for each in saved if not each["problem"]][-1] == 10

    def test_a_dry_run_touches_nothing(self, place: Place, tmp_path: Path) -> None:
        job = _merged(place.job(), {"entrypoint": ["train.py", *AWKWARD], "secrets": {"KEY": "hunter2"}})
        (tmp_path / "train.py").touch()
        (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
        before = sorted(tmp_path.rglob("*"))
        here = {"EVERSTEP_HOME": str(tmp_path / "home")}
        shown = everstep("run", "-f", "job.yaml", "--dry-run", folder=tmp_path, **here)
        assert shown.returncode == 0, shown.stderr
        assert "hunter2" not in shown.stdout + shown.stderr
        assert sorted(tmp_path.rglob("*")) == before


class FamilyContract(PlatformContract):
    def test_nodes_come_and_go_until_it_is_canceled(self, submit: Any, place: Place) -> None:
        if not place.scales:
            pytest.skip("this platform's jobs have a fixed size")
        job = submit(entrypoint=["train.py", "--steps", "100000", "--pace", "0.05"], nodes="1:2")
        both = job.wait_size(2)
        job.type("scale", job.id, "--nodes", "1")
        alone = job.wait_size(1, after=both)
        job.type("scale", job.id, "--nodes", "2")
        job.wait_size(2, after=alone)

        assert "running" in job.type("status", job.id)
        job.type("cancel", job.id)

        assert '"canceled"' in job.type("list", "--json")
        assert place.leftovers(job.id) == []
        until(lambda: not processes_of(job.id), lambda: f"left behind: {processes_of(job.id)}")

    def test_a_script_that_fails_fails_the_job(self, submit: Any) -> None:
        job = submit(entrypoint=["train.py", "--steps", "wrong"], restarts=0)
        said = job.type("watch", job.id, is_good=False)
        assert "invalid int value: 'wrong'" in said
        assert '"failed"' in job.type("list", "--json")


AnotherOfTheFamily: type[PlatformContract] = usual(PlatformContract, long=FamilyContract)


def _merged(ours: Mapping[str, Any], story: Mapping[str, Any]) -> dict[str, Any]:
    both = {key: {**ours[key], **story[key]} for key in ("env", "secrets") if key in ours and key in story}
    return {**ours, **story, **both}
