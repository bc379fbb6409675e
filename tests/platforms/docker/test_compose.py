"""Docker Compose on a real engine: each node is a container."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Mapping
from typing import Any

import pytest

from contract import PlatformContract
from engine import docker, job_here, leftovers
from submitted import digest_of


class ComposePlace:
    scales = True

    def __init__(self, engine: Mapping[str, str]) -> None:
        self._engine = engine

    def job(self) -> Mapping[str, Any]:
        return job_here()

    def env(self) -> Mapping[str, str]:
        return self._engine

    def kill(self, container: str) -> None:
        """As a crash: docker does not start those again that it was told to kill."""
        pid = docker(self._engine, "inspect", "--format", "{{.State.Pid}}", container)
        os.kill(int(pid), signal.SIGKILL)

    def leftovers(self, job_id: str) -> list[str]:
        return leftovers(self._engine, job_id)


class TestCompose(PlatformContract):
    @pytest.fixture
    def place(self, engine: Mapping[str, str]) -> ComposePlace:
        return ComposePlace(engine)

    @pytest.mark.timeout(240)
    def test_a_container_and_the_coordinator_die_and_the_job_finishes(self, submit: Any, place: ComposePlace) -> None:
        job = submit(entrypoint=["train.py", "--steps", "400", "--pace", "0.04"], nodes="1:2")
        both = job.wait_size(2)
        place.kill(f"{job.id}-node-1")
        alone = job.wait_size(1, after=both)
        place.kill(f"{job.id}-coordinator")  # docker starts it again
        job.type("scale", job.id, "--nodes", "2")
        job.wait_size(2, after=alone)

        assert set(re.findall(r"digest (\w+)", job.finish())) == {digest_of(["--steps", "400", "--pace", "0"])}
        assert "succeeded" in job.type("status", job.id)
