"""Docker Compose on a real engine: each node is a container."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from contract import PlatformContract
from engine import job_here, leftovers


class ComposePlace:
    scales = True

    def __init__(self, engine: Mapping[str, str]) -> None:
        self._engine = engine

    def job(self) -> Mapping[str, Any]:
        return job_here()

    def env(self) -> Mapping[str, str]:
        return self._engine

    def leftovers(self, job_id: str) -> list[str]:
        return leftovers(self._engine, job_id)


class TestCompose(PlatformContract):
    @pytest.fixture
    def place(self, engine: Mapping[str, str]) -> ComposePlace:
        return ComposePlace(engine)
