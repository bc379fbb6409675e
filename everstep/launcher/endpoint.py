"""Where the nodes of a job meet: the node that owns the endpoint's address hosts the coordinator, the others join it.

The token lies in a file of the user's home, named by the job: nodes that share the home find it there, others get it by
EVERSTEP_TOKEN. A file left by an earlier run is told from the new one by trying."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from everstep import env
from everstep.errors import CoordinatorUnreachable, EverstepError, PermanentError, Refused, UsageError
from everstep.launcher import run_record
from everstep.launcher.local_coordinator import CoordinatorFiles, LocalCoordinator, write_token

if TYPE_CHECKING:
    from everstep.client.calls import Coordinator

_PAUSE_S = 0.25
_UNAUTHORISED = 401
_TOLD_AFTER_S = 3.0
OTHERS_S = 30.0  # how long a coordinator of ours stays for other nodes after the end
_TOKEN_S = 5.0  # for the token's file to come, once the coordinator is there


@dataclass(frozen=True, kw_only=True, slots=True)
class Endpoint:
    host: str
    port: int
    is_tls: bool = False  # a coordinator stands there: a run hosts none with a certificate

    @property
    def url(self) -> str:
        return f"https://{self}" if self.is_tls else f"http://{self}"

    def may_host(self, told: bool | None) -> bool:
        """Whether this node is to host the coordinator; `told` by the user."""
        if self.is_tls and told:
            raise UsageError(
                f"a run cannot host a coordinator with TLS at {self.url}",
                hint="start `everstep serve --tls-cert … --tls-key …` there, and leave is_host out",
            )
        return not self.is_tls and (self.is_here() if told is None else told)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def is_here(self) -> bool:
        """Whether the address is one of this machine's: only then can one listen there."""
        try:
            found = socket.getaddrinfo(self.host, 0, type=socket.SOCK_STREAM)
        except OSError as error:
            raise UsageError(f"{self.host} has no address: {error.strerror}", hint="see --rdzv-endpoint") from None
        return any(can_bind(family, address) for family, _, _, _, address in found)

    def is_taken(self) -> bool:
        try:
            socket.create_connection((self.host, self.port), 2.0).close()
        except OSError:
            return False
        return True


def can_bind(family: int, address: tuple[object, ...]) -> bool:
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(address)
        except OSError:
            return False
        return True


def as_job_id(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "-", text)


def shared_token_path(job: str) -> Path:
    return env.token_path(as_job_id(job))


def share_token(job: str, token: str) -> Path:
    """For the other nodes of the job, and for nobody else."""
    path = shared_token_path(job)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return private_file(path, token + "\n")


def private_file(path: Path, text: str) -> Path:
    """For this user's eyes only, and whole at any moment."""
    aside = path.with_name(f"{path.name}.{os.getpid()}")
    with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:
        file.write(text)
    return aside.replace(path)


@contextmanager
def host_or_join(
    endpoint: Endpoint,
    job: str,
    directory: Path,
    token_file: Path | None,
    patience_s: float,
    say: Callable[[str], None],
) -> Iterator[tuple[str, Path]]:
    """A coordinator at the endpoint, which is on this machine: ours, or that of another node here that was first."""
    files = CoordinatorFiles(directory=directory)
    given = env.read_token(token_file) if token_file is not None else env.token()
    private_file(files.token, given + "\n") if given is not None else write_token(files.token)
    token = env.read_token(files.token)
    with ExitStack() as open_things:
        own = LocalCoordinator(files, say=say, host=endpoint.host, port=endpoint.port)
        try:
            open_things.enter_context(own)
        except PermanentError:
            if not endpoint.is_taken():
                raise
            private_file(files.token, join(endpoint, job, token_file, patience_s, say) + "\n")
        else:
            share_token(job, token)
            open_things.callback(unshare_token, job, token)
            open_things.callback(_await_others, endpoint, job, token, directory, say)
        yield endpoint.url, files.token


def _await_others(endpoint: Endpoint, job: str, token: str, directory: Path, say: Callable[[str], None]) -> None:
    """The job is over for us, but other nodes may still have to hear of it from the coordinator that we host."""
    if (record := run_record.read(directory)) is not None and record.state == run_record.LEFT:
        return  # it is not over for them, and will not be by waiting
    began, is_told = time.monotonic(), False
    deadline = began + OTHERS_S
    with _connect(endpoint, token, job) as coordinator:
        while time.monotonic() < deadline:
            try:
                view = coordinator.view(is_brief=True)
            except EverstepError:  # there was no such job, or the coordinator is away
                return
            present = [node.agent for node in view.nodes if node.is_present]
            if not present:
                return
            if not is_told and time.monotonic() - began > _TOLD_AFTER_S:
                is_told = True
                say(f"waiting, {OTHERS_S:.0f} s at most, for {', '.join(present)} to hear of the end from us")
            time.sleep(0.05)


def unshare_token(job: str, token: str) -> None:
    """The run that wrote it is over; what another one has written since stays."""
    path = shared_token_path(job)
    try:
        if path.read_text().strip() == token:
            path.unlink()
    except FileNotFoundError:
        pass


def join(endpoint: Endpoint, job: str, token_file: Path | None, patience_s: float, say: Callable[[str], None]) -> str:
    """Wait until the coordinator there answers us; the token that it takes. One that is there knows its token: who
    does not have it a little later will not get it by waiting."""
    began, is_told, there_at = time.monotonic(), False, None
    while True:
        token = _find_token(job, token_file)
        problem = _try(endpoint, job, token)
        if problem is None and token is not None:
            return token
        now, is_there = time.monotonic(), isinstance(problem, UsageError | Refused) and endpoint.is_taken()
        there_at = (there_at or now) if is_there else None
        if problem is not None and (now - there_at > _TOKEN_S if there_at else now - began > patience_s):
            raise problem
        if not is_told and now - began > _TOLD_AFTER_S:
            is_told = True
            say(f"waiting for the coordinator at {endpoint}: {problem}")
        time.sleep(_PAUSE_S)


def _connect(endpoint: Endpoint, token: str, job: str) -> Coordinator:
    from everstep.client.calls import Coordinator  # late: the command line is read before there is time to import HTTP

    return Coordinator(endpoint.url, token, job)


def _try(endpoint: Endpoint, job: str, token: str | None) -> EverstepError | None:
    problem = _ask(endpoint, job, token)
    if problem is not None and endpoint.is_taken() and _is_foreign(endpoint):
        return UsageError(
            f"what answers at {endpoint} is no everstep coordinator",
            hint="another program has this port: give another one in --rdzv-endpoint",
        )
    return problem


def _is_foreign(endpoint: Endpoint) -> bool:
    from everstep.client.calls import is_foreign

    return is_foreign(endpoint.url)


def _ask(endpoint: Endpoint, job: str, token: str | None) -> EverstepError | None:
    if token is None:
        return UsageError(
            f"no token for the coordinator at {endpoint}",
            hint=f"set {env.TOKEN} on all nodes, or let them share the home folder: it is in {shared_token_path(job)}",
        )
    try:
        with _connect(endpoint, token, job) as coordinator:
            coordinator.check()
        return None
    except CoordinatorUnreachable as error:
        return error
    except Refused as error:
        if error.status != _UNAUTHORISED:
            return error
        return UsageError(
            f"the coordinator at {endpoint} does not take our token",
            hint=f"set the same {env.TOKEN} on all nodes, or let them share the home folder",
        )


def _find_token(job: str, token_file: Path | None) -> str | None:
    if token_file is not None:
        return env.read_token(token_file)
    if (token := env.token()) is not None:
        return token
    path = shared_token_path(job)
    return env.read_token(path) if path.exists() else None
