"""The environment as a whole."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from everstep import env


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = env.everything()
    yield
    env.replace(before)


def test_what_replaces_the_environment_is_all_there_is(capfd: pytest.CaptureFixture[str]) -> None:
    env.replace({"KEPT": "1", "CHANGED": "1", "GONE": "1"})
    env.replace(wanted := {"KEPT": "1", "CHANGED": "2", "NEW": "", "PATH": os.defpath})
    assert env.everything() == wanted
    os.system("env")  # C's own copy, which children and libraries see
    seen = dict(line.split("=", 1) for line in capfd.readouterr().out.splitlines())
    assert {name: seen.get(name) for name in ("KEPT", "CHANGED", "NEW")} == {"KEPT": "1", "CHANGED": "2", "NEW": ""}
    assert "GONE" not in seen
