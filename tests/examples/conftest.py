"""Examples are run as a person would run them: in a folder and a home of their own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab.ports import reserved_port
from lab.typed import Typed, keyboard


@pytest.fixture
def type_command(tmp_path: Path) -> Iterator[Callable[..., Typed]]:
    """Start a program."""
    with keyboard(tmp_path) as start:
        yield start


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., str]]:
    """Run `python SCRIPT ARGS` to its end."""
    with keyboard(tmp_path_factory.mktemp("python")) as start:
        yield lambda *arguments: start(sys.executable, *arguments).finish()


@pytest.fixture
def torchrun(type_command: Callable[..., Typed]) -> Callable[..., Typed]:
    """Type `torchrun OPTIONS SCRIPT ARGS`, at a port of its own."""
    meeting = ("--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0")
    return lambda *arguments: type_command(sys.executable, "-m", "torch.distributed.run", *meeting, *arguments)


@pytest.fixture
def everstep_run(type_command: Callable[..., Typed]) -> Callable[..., Typed]:
    """Type `everstep run OPTIONS SCRIPT ARGS`."""
    patience = ("--lease-s=600", "--arrive-s=600")  # nobody is lost by being slow
    return lambda *arguments, **env: type_command(sys.executable, "-m", "everstep", "run", *patience, *arguments, **env)


@pytest.fixture
def free_port() -> Iterator[int]:
    with reserved_port() as port:
        yield port
