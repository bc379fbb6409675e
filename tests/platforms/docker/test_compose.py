"""Docker Compose on a real engine: each node is a container."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lab.contract import AnotherOfTheFamily
from lab.docker.engine import docker, job_here, leftovers
from lab.submitted import digest_after


class ComposePlace:
    scales = True

    def __init__(self, engine: Mapping[str, str]) -> None:
        self._engine = engine

    def job(self) -> Mapping[str, Any]:
        return job_here()

    def env(self) -> Mapping[str, str]:
        return self._engine

    def saves(self, folder: Path) -> tuple[str, Mapping[str, Any]]:
        uri = str(folder / "saved")
        (folder / "saved").mkdir()
        return uri, {"checkpoint": uri, "volumes": [{"source": uri, "target": uri}]}

    def kill(self, container: str) -> None:
        """As a crash: docker does not restart containers that it killed itself."""
        pid = int(docker(self._engine, "inspect", "--format", "{{.State.Pid}}", container))
        assert pid > 0, f"{container} does not run"  # 0 would be all of us
        os.kill(pid, signal.SIGKILL)

    def leftovers(self, job_id: str) -> list[str]:
        return leftovers(self._engine, job_id)


class TestCompose(AnotherOfTheFamily):
    @pytest.fixture
    def place(self, engine: Mapping[str, str]) -> ComposePlace:
        return ComposePlace(engine)

    def test_a_container_and_the_coordinator_die_and_the_job_finishes(
        self, submit: Any, place: ComposePlace, tmp_path: Path
    ) -> None:
        (tmp_path / "signs").mkdir()
        job = submit(
            entrypoint=["train.py", "--steps", "300", "--pace", "0.2", "--until", "/signs/hurry"],
            nodes="1:2",
            volumes=[{"source": str(tmp_path / "signs"), "target": "/signs"}],
        )
        both = job.wait_size(2)
        place.kill(f"{job.id}-node-1")
        alone = job.wait_size(1, after=both)
        place.kill(f"{job.id}-coordinator")  # docker starts it again
        job.type("scale", job.id, "--nodes", "2")
        job.wait_size(2, after=alone)
        (tmp_path / "signs" / "hurry").touch()

        assert set(re.findall(r"digest (\w+)", job.finish())) == {digest_after(300)}
        assert "succeeded" in job.type("status", job.id)
