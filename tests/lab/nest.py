"""The nurseries that all stories of a session share: torch and the coordinator are imported once, not for each story.

Agents find those that `--keep-warm` has left behind; what the tests start themselves are forks of two more. Stories
about nurseries start their own, as do nodes with networks of their own: a nursery serves none but those who live where
it lives."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from everstep.launcher.nursery import CONTROL, WORKERS, Nursery, NurseryGone
from everstep.launcher.starter import plain_environment
from everstep.launcher.warm import connect, start_at
from everstep.process import Child

_IDLE_S = 300.0  # after stories that need none; one that agents look for later is started by them
_READY_S = 60.0
_END_S = 10.0

ONE_THREAD = {"OMP_NUM_THREADS": "1"}  # the same for all: what differs here needs a nursery of its own
AGENT_OPTIONS = (f"--keep-warm={_IDLE_S:.0f}",)

_folder = Path()
_kept: list[Nursery] = []  # a connection to each of ours: with the last one it ends


def open_nest(folder: Path) -> None:
    """All nurseries are kept in this folder. Its name is short: a socket's may not be long."""
    global _folder
    _folder = folder
    for kind in (CONTROL, WORKERS):
        line = start_at(_path(kind), plain_environment(os.environ) | ONE_THREAD, kind)
        assert line is not None
        _kept.append(Nursery(line))
    for nursery in _kept:  # also: for a moment a process that was just started has no name, and would seem to be new
        assert nursery.await_ready(_READY_S), f"a nursery is not ready: {nursery.problem}"


def close_nest() -> None:
    sockets = list(_folder.rglob("*.nursery"))
    for path in sockets:
        if (line := connect(path)) is not None:
            nursery = Nursery(line)
            nursery.keep_warm(0.0)
            nursery.close()
    while _kept:
        _kept.pop().close()
    deadline = time.monotonic() + _END_S
    while any(path.exists() for path in sockets) and time.monotonic() < deadline:  # each removes its own
        time.sleep(0.01)


def start_service(command: Sequence[str], *, env: Mapping[str, str], output: IO[bytes] | int | None) -> Child:
    """As `Child.start`, for a coordinator."""
    return _start(CONTROL, command, env, output)


def start_script(command: Sequence[str], *, env: Mapping[str, str], output: IO[bytes] | int | None) -> Child:
    """As `Child.start`, for a script that needs torch."""
    return _start(WORKERS, command, env, output)


def _start(kind: str, command: Sequence[str], env: Mapping[str, str], output: IO[bytes] | int | None) -> Child:
    line = connect(_path(kind))
    assert line is not None, f"the nursery for {kind} has ended"
    nursery = Nursery(line)
    assert nursery.await_ready(_READY_S), f"the nursery for {kind} is not ready: {nursery.problem}"
    try:
        return nursery.start_only(command, env=env, output=output, cwd=None)
    except NurseryGone:  # it does not come to it on a busy machine
        nursery.close()
        return Child.start(command, env=env, output=output)


def _path(kind: str) -> Path:
    return _folder / f"{kind}.nursery"
