"""`everstep pool join`: from options to the standing agent of this node."""

from __future__ import annotations

import fcntl
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from everstep import env
from everstep.errors import UsageError
from everstep.jobs.tokens import token_path, worker_token_path
from everstep.launcher.local_coordinator import private_directory
from everstep.pool.agent import PoolAgent, PoolAgentSpec
from everstep.pool.machine_kind import machine_kind, num_slots
from everstep.pool.options import PoolJoinOptions
from everstep.storage import private_file

_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9._-]")


def join_pool(options: PoolJoinOptions, say: Callable[[str], None]) -> int:
    name = options.name or socket.gethostname()
    slots = num_slots(options.slots)
    place = options.folder or env.home() / "pool" / _NOT_IN_A_NAME.sub("_", f"{options.pool}-{name}")
    folder = private_directory(place)
    with _alone(folder, name):
        spec = PoolAgentSpec(
            url=options.coordinator,
            token_file=worker_token_path(token_path(options.token_file, folder), folder),
            pool=options.pool,
            agent=name,
            num_slots=slots,
            kind=machine_kind(),
            folder=folder,
        )
        return PoolAgent(spec, say).run()


@contextmanager
def _alone(folder: Path, name: str) -> Iterator[None]:
    """Two agents of one name would end each other's trials."""
    with private_file.append(folder / "agent.lock") as lock:
        try:
            with private_file.if_it_can_lock():
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            hint = "stop it first, or give this one another --name"
            raise UsageError(
                f"an agent named {name} is running already in {folder}", hint=hint, code="pool-agent-running"
            ) from None
        yield
