"""Nurseries that stay after their run: each listens on a socket in a folder that only its user may enter.

The socket's name says which one a run may use: it is a digest of all that a process has from its start on and that its
forks could not change. So a job finds a nursery that is as one of its own would be, or none."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import socket
import stat
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import everstep
from everstep import env
from everstep.ipc import local_socket
from everstep.nursery.client import NurseryClient, nursery_command
from everstep.nursery.programs import read_early
from everstep.process import start_detached
from everstep.storage import private_file

_STATUS = ("Umask", "Uid", "Gid", "Groups", "Cap", "NoNewPrivs", "Seccomp:", "Cpus_allowed:", "Mems_allowed:", "SigIgn")
_LIMITS = [name for name in dir(resource) if name.startswith("RLIMIT_")]


def warm_nursery(environment: Mapping[str, str], kind: str, *, may_start: bool) -> NurseryClient | None:
    """The one that fits, started if there is none and `may_start`. None also if no folder can hold it."""
    folder = _folder(may_make=may_start)
    if folder is None:
        return None
    path = folder / f"{_digest(environment, kind)}.nursery"
    if not may_start and not path.exists():
        return None
    with private_file.locked(Path(f"{path}.lock")):
        line = connect(path)
        if line is None and may_start:
            line = start_at(path, environment, kind)
    return NurseryClient(line) if line is not None else None


def _folder(*, may_make: bool) -> Path | None:
    """A folder that no other user can read or replace."""
    path = env.runtime_folder()
    try:
        if may_make:
            path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
    except OSError:
        return None
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077
    return path if is_ours else None


def connect(path: Path) -> socket.socket | None:
    """To the nursery that listens there, if there is one and it is this user's."""
    try:
        return local_socket.connect(path)
    except OSError:  # none there, one that was killed, or another user's
        return None


def start_at(path: Path, environment: Mapping[str, str], kind: str) -> socket.socket | None:
    """One that listens there, and the first connection to it."""
    try:
        listener = local_socket.listen(path)
    except OSError:  # no room, or no right to make it
        return None
    with listener:
        with open(private_file.descriptor(f"{path}.log", os.O_WRONLY | os.O_TRUNC), "wb") as log:
            command = nursery_command(listener.fileno(), kind, path)
            start_detached(command, env=environment, output=log, descriptors=[listener.fileno()])
        return connect(path)


def _digest(environment: Mapping[str, str], kind: str) -> str:
    facts = [
        kind,
        sys.executable,
        sys.version,
        read_early(environment),
        os.getcwd() if _has_relative(environment.get("PYTHONPATH", "")) else "",
        [_stamp(Path(entry)) for entry in sys.path[1:]],  # a package that comes or goes changes its folder
        package_stamps(),
        sorted((kind, os.readlink(f"/proc/self/ns/{kind}")) for kind in os.listdir("/proc/self/ns")),
        Path("/proc/self/cgroup").read_text(),
        [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(_STATUS)],
        [resource.getrlimit(getattr(resource, name)) for name in _LIMITS],
        os.getpriority(os.PRIO_PROCESS, 0),
    ]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


@cache
def package_stamps() -> list[tuple[str, int, int]]:
    """Of this package's files, as this process, or the one that it is a fork of, found them first: what it runs."""
    return sorted(_stamp(file) for file in Path(everstep.__file__).parent.rglob("*.py"))


def _has_relative(path: str) -> bool:
    return bool(path) and not all(os.path.isabs(part) for part in path.split(os.pathsep))


def _stamp(path: Path) -> tuple[str, int, int]:
    try:
        found = path.stat()
    except OSError:
        return (str(path), 0, 0)
    return (str(path), found.st_mtime_ns, found.st_size)
