"""Examples are run as a person would run them: in a folder and a home of their own."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from typed import Typed

ROOT = Path(__file__).parents[2]


@pytest.fixture
def type_command(tmp_path: Path) -> Iterator[Callable[..., Typed]]:
    """Start a program in a folder that is also its home, with one thread for each process."""
    outer = {name: value for name, value in os.environ.items() if not name.startswith(("EVERSTEP_", "PET_"))}
    given = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HOME": str(tmp_path), "COLUMNS": "160"}
    typed: list[Typed] = []

    def start(*command: object, **env: str) -> Typed:
        log = tmp_path / f"terminal-{len(typed)}.log"
        typed.append(Typed([str(each) for each in command], log, outer | given | env))
        return typed[-1]

    yield start
    for each in typed:
        each.end()


@pytest.fixture
def python(type_command: Callable[..., Typed]) -> Callable[..., str]:
    """Run `python SCRIPT ARGS` to its end."""

    def run(*arguments: object) -> str:
        return type_command(sys.executable, *arguments).finish()

    return run


@pytest.fixture
def everstep_run(type_command: Callable[..., Typed]) -> Callable[..., Typed]:
    """Type `everstep run OPTIONS SCRIPT ARGS`."""

    def start(*arguments: object, **env: str) -> Typed:
        return type_command(sys.executable, "-m", "everstep", "run", *arguments, **env)

    return start


@pytest.fixture
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
