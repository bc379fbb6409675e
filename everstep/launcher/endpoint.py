"""Where the nodes of a job meet: the node that owns the endpoint's address hosts the coordinator, the others join it.

The token is in a file of the user's home, named by the job: nodes that share the home find it there, others get it from
EVERSTEP_TOKEN. A file left by an earlier run is recognized by trying it."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from everstep import env
from everstep.addresses import is_here
from everstep.errors import CoordinatorUnreachable, EverstepError, PermanentError, Refused, UsageError
from everstep.launcher import run_record
from everstep.launcher.local_coordinator import CoordinatorFiles, LocalCoordinator, write_token
from everstep.storage import private_file
from everstep.waiting import wait_until

if TYPE_CHECKING:
    from everstep.client.calls import Coordinator

_PAUSE_S = 0.25
_UNAUTHORIZED = 401
OTHERS_S = 30.0  # how long the coordinator stays for other nodes after the end
_TOKEN_S = 5.0  # for the token's file to come, once the coordinator is there


@dataclass(frozen=True, kw_only=True, slots=True)
class Endpoint:
    host: str
    port: int
    is_tls: bool = False  # it is running already: a run hosts none with a certificate

    @property
    def url(self) -> str:
        return f"https://{self}" if self.is_tls else f"http://{self}"

    def may_host(self, is_host: bool | None) -> bool:
        """Whether this node is to host the coordinator; `is_host`: what the user said, if anything."""
        if self.is_tls and is_host:
            problem = f"a run cannot host a coordinator with TLS at {self.url}"
            hint = "start `everstep serve --tls-cert … --tls-key …` there, and leave is_host out"
            raise UsageError(problem, hint=hint, code="tls-cannot-be-hosted")
        return not self.is_tls and (is_here(self.host) if is_host is None else is_host)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def is_taken(self) -> bool:
        try:
            socket.create_connection((self.host, self.port), 2.0).close()
        except OSError:
            return False
        return True


def as_job_id(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "-", text)


def shared_token_path(job: str) -> Path:
    return env.token_path(as_job_id(job))


def share_token(job: str, token: str) -> Path:
    """Only for the other nodes of the job."""
    return save_token(shared_token_path(job), token)


def save_token(path: Path, token: str) -> Path:
    private_file.write(path, f"{token}\n".encode())
    return path


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
    save_token(files.token, given) if given is not None else write_token(files.token)
    token = env.read_token(files.token)
    with ExitStack() as open_things:
        own = LocalCoordinator(files, say=say, host=endpoint.host, port=endpoint.port)
        try:
            open_things.enter_context(own)
        except PermanentError:
            if not endpoint.is_taken():
                raise
            save_token(files.token, join(endpoint, job, token_file, patience_s, say))
        else:
            share_token(job, token)
            open_things.callback(unshare_token, job, token)
            open_things.callback(_await_others, endpoint, job, token, directory, say)
        yield endpoint.url, files.token


def _await_others(endpoint: Endpoint, job: str, token: str, directory: Path, say: Callable[[str], None]) -> None:
    """The job is over for us, but other nodes may still have to hear of it from the coordinator that we host."""
    if (record := run_record.read(directory)) is not None and record.state == run_record.LEFT:
        return  # it is not over for them, and will not be by waiting
    present: list[str] = []
    with _connect(endpoint, token, job) as coordinator:

        def have_left() -> bool:
            try:
                view = coordinator.view(is_brief=True)
            except EverstepError:  # there was no such job, or the coordinator is away
                return True
            present[:] = [node.agent for node in view.nodes if node.is_present]
            return not present

        what = lambda: f"{', '.join(present)} to learn that the job is over ({OTHERS_S:.0f} s at most)"  # noqa: E731
        wait_until(have_left, OTHERS_S, what, say=say)


def unshare_token(job: str, token: str) -> None:
    """The run that wrote it is over; what another one has written since stays."""
    path = shared_token_path(job)
    with suppress(FileNotFoundError):
        if path.read_text().strip() == token:
            path.unlink()


def join(endpoint: Endpoint, job: str, token_file: Path | None, patience_s: float, say: Callable[[str], None]) -> str:
    """Wait until the coordinator there answers us; the token that it takes. A coordinator that
    answers has its token: a node that does not have it soon after will not get it by waiting."""
    problem: EverstepError | None = None
    there_at: float | None = None

    def look() -> str | None:
        nonlocal problem, there_at
        token = _find_token(job, token_file)
        problem = _try(endpoint, job, token)
        if problem is None:
            return token
        now, is_there = time.monotonic(), isinstance(problem, UsageError | Refused) and endpoint.is_taken()
        there_at = (there_at or now) if is_there else None
        if there_at is not None and now - there_at > _TOKEN_S:
            raise problem
        return None

    token = wait_until(look, patience_s, lambda: f"the coordinator at {endpoint}: {problem}", say=say, pause_s=_PAUSE_S)
    if token is None:
        assert problem is not None
        raise problem
    return token


def _connect(endpoint: Endpoint, token: str, job: str) -> Coordinator:
    from everstep.client.calls import Coordinator  # late: the command line is read before there is time to import HTTP

    return Coordinator(endpoint.url, token, job)


def _try(endpoint: Endpoint, job: str, token: str | None) -> EverstepError | None:
    from everstep.client.calls import is_foreign

    problem = _ask(endpoint, job, token)
    if problem is not None and endpoint.is_taken() and is_foreign(endpoint.url):
        hint = "another program has this port: give another one in --rdzv-endpoint"
        told = f"the program at {endpoint} is not an Everstep coordinator"
        return UsageError(told, hint=hint, code="endpoint-foreign")
    return problem


def _ask(endpoint: Endpoint, job: str, token: str | None) -> EverstepError | None:
    hint = (
        f"set the same {env.TOKEN} on all nodes, or let them share the home folder: it is in {shared_token_path(job)}"
    )
    if token is None:
        return UsageError(f"no token for the coordinator at {endpoint}", hint=hint, code="token-missing")
    try:
        with _connect(endpoint, token, job) as coordinator:
            coordinator.check()
        return None
    except CoordinatorUnreachable as error:
        return error
    except Refused as error:
        if error.status != _UNAUTHORIZED:
            return error
        return UsageError(f"the coordinator at {endpoint} refused this node's token", hint=hint, code="token-refused")


def _find_token(job: str, token_file: Path | None) -> str | None:
    if token_file is not None:
        return env.read_token(token_file)
    if (token := env.token()) is not None:
        return token
    path = shared_token_path(job)
    return env.read_token(path) if path.exists() else None
