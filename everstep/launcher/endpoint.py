"""Where the nodes of a job meet: the node that owns the endpoint's address hosts the coordinator, the others join it.

The token lies in a file of the user's home, named by the job: nodes that share the home find it there, others get it by
EVERSTEP_TOKEN. A file left by an earlier run is told from the new one by trying."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from everstep import env
from everstep.client import Coordinator
from everstep.errors import CoordinatorUnreachable, EverstepError, Refused, UsageError

_PAUSE_S = 0.25
_UNAUTHORISED = 401
_TOLD_AFTER_S = 3.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Endpoint:
    host: str
    port: int

    @property
    def url(self) -> str:
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    def is_here(self) -> bool:
        """Whether the address is one of this machine's: only then can one listen there."""
        try:
            found = socket.getaddrinfo(self.host, 0, type=socket.SOCK_STREAM)
        except OSError as error:
            raise UsageError(f"{self.host} has no address: {error.strerror}", hint="see --rdzv-endpoint") from None
        return any(_can_bind(family, address) for family, _, _, _, address in found)


def _can_bind(family: int, address: tuple[object, ...]) -> bool:
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(address)
        except OSError:
            return False
        return True


def shared_token_path(job: str) -> Path:
    return Path.home() / ".everstep" / "tokens" / re.sub(r"[^A-Za-z0-9._-]", "_", job)


def share_token(job: str, token: str) -> Path:
    """For the other nodes of the job, and for nobody else."""
    path = shared_token_path(job)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    aside = path.with_name(f"{path.name}.{os.getpid()}")
    with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(token + "\n")
    aside.replace(path)
    return path


def unshare_token(job: str, token: str) -> None:
    """The run that wrote it is over; what another one has written since stays."""
    path = shared_token_path(job)
    try:
        if path.read_text().strip() == token:
            path.unlink()
    except FileNotFoundError:
        pass


def join(
    endpoint: Endpoint, job: str, token_file: Path | None, patience_s: float, say: Callable[[str], None]
) -> str:
    """Wait until the coordinator there answers us; the token that it takes."""
    deadline, is_told = time.monotonic() + patience_s, False
    began = time.monotonic()
    while True:
        token = _find_token(job, token_file)
        problem: EverstepError
        if token is None:
            problem = UsageError(
                f"no token for the coordinator at {endpoint}",
                hint=f"set {env.TOKEN}, or share the home folder: the token is in {shared_token_path(job)} there",
            )
        else:
            try:
                with Coordinator(endpoint.url, token, job) as coordinator:
                    coordinator.check()
                return token
            except CoordinatorUnreachable as error:
                problem = error
            except Refused as error:
                if error.status != _UNAUTHORISED:
                    raise
                problem = UsageError(
                    f"the coordinator at {endpoint} does not take our token",
                    hint=f"give all nodes the same {env.TOKEN}, or the same home folder",
                )
        if time.monotonic() > deadline:
            raise problem
        if not is_told and time.monotonic() - began > _TOLD_AFTER_S:
            is_told = True
            say(f"waiting for the coordinator at {endpoint}: {problem.message}")
        time.sleep(_PAUSE_S)


def _find_token(job: str, token_file: Path | None) -> str | None:
    if token_file is not None:
        return env.read_token(token_file)
    if (token := env.token()) is not None:
        return token
    path = shared_token_path(job)
    return env.read_token(path) if path.exists() else None
