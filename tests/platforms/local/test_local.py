"""The local platform: processes of this machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lab import nest
from lab.contract import FamilyContract


class LocalPlace:
    scales = True

    def job(self) -> Mapping[str, Any]:
        return {"platform": "local"}

    def env(self) -> Mapping[str, str]:
        return nest.found()

    def saves(self, folder: Path) -> tuple[str, Mapping[str, Any]]:
        uri = str(folder / "saved")
        return uri, {"checkpoint": uri}

    def leftovers(self, job_id: str) -> list[str]:
        return []


class TestLocal(FamilyContract):
    @pytest.fixture
    def place(self) -> LocalPlace:
        return LocalPlace()
