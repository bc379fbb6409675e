"""The nurseries that the stories of one test process share, so that torch and the coordinator are imported once.

Agents find them because they are where `--keep-warm` would have left them; processes that the tests start themselves
are forks of the same two. Each is started when the first story needs it. Stories about nurseries start their own, as do
nodes with their own networks: a nursery serves only processes in its own namespaces."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from everstep.nursery.client import CONTROL, WORKERS, NurseryClient, NurseryGone
from everstep.nursery.warm import connect
from everstep.process import Child
from lab.command import DEADLINE_S, environment, until

_IDLE_S = 300.0  # without a story that needs it; then it is started again

AGENT_OPTIONS = (f"--keep-warm={_IDLE_S:.0f}",)

# Its path depends on everything that a process inherits, so it is looked up as an agent would do it.
_ASK = """
import os, sys
from everstep import env
from everstep.launcher import starter
from everstep.nursery import warm
_, kind, idle_s = sys.argv
outer = os.environ
given = starter.plain_environment(outer) if kind == "control" else starter.nursery_environment(outer, num_workers=1)
starter._warm_nursery(given, kind, may_start=True, idle_s=float(idle_s)).close()
print(env.runtime_folder() / f"{warm._digest(given, kind)}.nursery")
"""

_paths: dict[str, Path] = {}


def shared() -> dict[str, str]:
    """Variables with the same values in all processes that share a nursery."""
    home = _folder() / "home"
    home.mkdir(exist_ok=True)
    return {"OMP_NUM_THREADS": "1", "HOME": str(home)}


def found() -> dict[str, str]:
    """The same, for commands whose workers are forks of the shared nursery."""
    _find(WORKERS).close()
    return shared()


def close() -> None:
    _paths.clear()
    sockets = list(_folder().rglob("*.nursery"))
    for path in sockets:
        if (line := connect(path)) is not None:
            nursery = NurseryClient(line)
            nursery.await_ready(
                DEADLINE_S
            )  # with its greeting unread, the connection would be reset and the request lost
            nursery.keep_warm(0.0)
            nursery.close()
    until(lambda: not any(path.exists() for path in sockets))  # each removes its own


def start_service(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    output: IO[bytes] | int | None,
    errors: IO[bytes] | int | None = None,
    cwd: Path | None = None,
) -> Child:
    """Like `Child.start`, for a coordinator or an agent."""
    return _start(CONTROL, command, env, output, errors, cwd)


def start_script(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    output: IO[bytes] | int | None,
    errors: IO[bytes] | int | None = None,
    cwd: Path | None = None,
) -> Child:
    """Like `Child.start`, for `python SCRIPT ARGS`, a script that needs torch."""
    python, *words = command
    command = command if words[0] == "-u" else [python, "-u", *words]
    return _start(WORKERS, command, dict(env) | shared(), output, errors, cwd)


def _start(
    kind: str,
    command: Sequence[str],
    env: Mapping[str, str],
    output: IO[bytes] | int | None,
    errors: IO[bytes] | int | None,
    cwd: Path | None,
) -> Child:
    nursery = _find(kind)
    try:
        return nursery.start_worker(command, env=env, output=output, errors=errors, cwd=cwd, is_only=True)
    except NurseryGone:  # it does not come to it on a busy machine
        nursery.close()
        return Child.start(command, env=env, output=output, errors=errors, cwd=cwd)


def _find(kind: str) -> NurseryClient:
    line = connect(_paths[kind]) if kind in _paths else None
    if line is None:  # the first use, or it was idle for too long
        ask = [sys.executable, "-c", _ASK, kind, str(_IDLE_S)]
        path = subprocess.run(ask, env=environment(**shared()), stdout=subprocess.PIPE, text=True, check=True).stdout
        _paths[kind] = Path(path.strip())
        line = connect(_paths[kind])
    assert line is not None, f"the nursery for {kind} has ended"
    nursery = NurseryClient(line)
    assert nursery.await_ready(DEADLINE_S), f"the nursery for {kind} is not ready: {nursery.problem}"
    return nursery


def _folder() -> Path:
    return Path(os.environ["XDG_RUNTIME_DIR"])  # created by tests/conftest.py
