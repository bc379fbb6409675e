"""Examples are run as a person would run them: in a folder and a home of their own.

To import torch takes longer than most of them train, so whoever can is a fork of the nurseries that all share: workers
of `everstep run`, and scripts that run alone. One story for each way to start starts plainly."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab import nest
from lab.command import EVERSTEP, Command, keyboard
from lab.ports import reserved_port

PATIENCE = ("--lease-s=600", "--arrive-s=600", "--stall-s=600")  # nobody is lost by being slow


@pytest.fixture
def type_command(tmp_path: Path) -> Iterator[Callable[..., Command]]:
    """Start a program plainly."""
    with keyboard(tmp_path, **nest.shared()) as start:
        yield start


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., str]]:
    """Run `python SCRIPT ARGS` to its end."""
    with keyboard(tmp_path_factory.mktemp("python"), **nest.shared()) as start:
        yield lambda *arguments: start(sys.executable, *arguments, start=nest.start_script).finish()


@pytest.fixture
def python_here(type_command: Callable[..., Command]) -> Callable[..., str]:
    """The same in the test's own folder."""
    return lambda *arguments: type_command(sys.executable, *arguments, start=nest.start_script).finish()


@pytest.fixture
def torchrun(type_command: Callable[..., Command]) -> Callable[..., Command]:
    """Type `torchrun OPTIONS SCRIPT ARGS`, at a port of its own."""
    meeting = ("--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0")
    return lambda *arguments: type_command(sys.executable, "-m", "torch.distributed.run", *meeting, *arguments)


@pytest.fixture
def everstep_run(type_command: Callable[..., Command]) -> Callable[..., Command]:
    """Type `everstep run OPTIONS SCRIPT ARGS`."""
    options = (*PATIENCE, *nest.AGENT_OPTIONS)
    return lambda *arguments, **env: type_command(*EVERSTEP, "run", *options, *arguments, **env)


@pytest.fixture
def free_port() -> Iterator[int]:
    with reserved_port() as port:
        yield port
