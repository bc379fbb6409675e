"""Slurm: the stories of every platform, in both modes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lab.contract import AnotherOfTheFamily, FamilyContract
from lab.slurm.hosts import Lab


class SlurmPlace:
    def __init__(self, lab: Lab, mode: str) -> None:
        self._lab, self._mode, self.scales = lab, mode, mode == "array"

    def job(self) -> Mapping[str, Any]:
        return {
            "platform": {"slurm": {"mode": self._mode}},
            "env": {"GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"},
        }

    def env(self) -> Mapping[str, str]:
        return self._lab.env()

    def saves(self, folder: Path) -> tuple[str, Mapping[str, Any]]:
        uri = str(folder / "saved")
        return uri, {"checkpoint": uri}

    def leftovers(self, job_id: str) -> list[str]:
        return self._lab.jobs(job_id)


class TestArray(FamilyContract):
    @pytest.fixture
    def place(self, queue: Lab) -> SlurmPlace:
        return SlurmPlace(queue, "array")


class TestSingle(AnotherOfTheFamily):
    @pytest.fixture
    def place(self, queue: Lab) -> SlurmPlace:
        return SlurmPlace(queue, "single")
