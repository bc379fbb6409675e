"""`everstep run` and `everstep agent`: put together coordinator, agent and display, and reply with an exit code."""

from __future__ import annotations

import os
import secrets
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from everstep import env
from everstep.client import Coordinator
from everstep.errors import UsageError
from everstep.launcher.agent import Agent, Worker, node_address
from everstep.launcher.display import Display
from everstep.launcher.local_coordinator import CoordinatorFiles, LocalCoordinator, private_directory
from everstep.launcher.logs import tail
from everstep.launcher.node import NodeSpec
from everstep.launcher.starter import Starter
from everstep.launcher.verdict import Verdict, failure_report
from everstep.wire import JobSpec, Policy


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentRequest:
    command: tuple[str, ...]
    coordinator_url: str
    job: str
    num_workers: int
    log_dir: Path
    name: str | None = None
    token_file: Path | None = None
    max_restarts: int = 0
    address: str | None = None
    shutdown_s: float = 30.0
    heartbeat_s: float = 1.0
    is_quiet: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRequest:
    command: tuple[str, ...]
    name: str
    num_workers: int
    log_dir: Path
    coordinator_url: str | None = None
    token_file: Path | None = None
    job: str | None = None
    max_restarts: int = 0
    address: str | None = None
    shutdown_s: float = 30.0
    is_quiet: bool = False
    policy: Mapping[str, float | int] = field(default_factory=dict)


def run_job(request: RunRequest, starter: Starter) -> int:
    """A job from its creation to its end, on this machine."""
    job = request.job or new_job_id()
    directory = private_directory(request.log_dir / job)
    events = _events_path(directory)
    policy = Policy(**{"start_workers": request.num_workers, **request.policy})  # type: ignore[arg-type]
    with Display(is_quiet=request.is_quiet) as display, _coordinator(request, directory, display.say) as (url, token):
        with closing(Coordinator(url, env.read_token(token), job)) as coordinator:
            view = coordinator.create_job(JobSpec(name=request.name, policy=policy))
        if view.is_finished or view.is_stopped:
            raise UsageError(f"job {job} is over: {view.reason}", hint="give another --job, or none for a new one")
        display.follow_events(events)
        display.say(f"job {job}, logs in {directory}")
        agent_request = AgentRequest(
            command=request.command,
            coordinator_url=url,
            job=job,
            num_workers=request.num_workers,
            log_dir=request.log_dir,
            token_file=token,
            max_restarts=request.max_restarts,
            address=request.address,
            shutdown_s=request.shutdown_s,
            heartbeat_s=policy.heartbeat_s,
        )
        return _run_node(agent_request, starter, directory, display)


def run_agent(request: AgentRequest, starter: Starter) -> int:
    """One node's part of a job that exists."""
    directory = private_directory(request.log_dir / request.job)
    _events_path(directory)
    with Display(is_quiet=request.is_quiet) as display:
        return _run_node(request, starter, directory, display)


def _run_node(request: AgentRequest, starter: Starter, directory: Path, display: Display) -> int:
    def follow(worker: Worker) -> None:
        display.follow(worker.place.worker, worker.log, worker.board)

    verdict = Agent(node_spec(request, directory), starter=starter, say=display.say, on_worker=follow).run()
    display.close()
    _report(verdict, display, directory)
    return verdict.exit_code


def _events_path(directory: Path) -> Path:
    """Where this process and all that it starts write their events."""
    return Path(os.environ.setdefault(env.EVENTS, str(directory / "events.jsonl")))


def _report(verdict: Verdict, display: Display, directory: Path) -> None:
    if verdict.is_good:
        steps = f"{display.num_steps} steps in {display.elapsed_s:.1f} s"
        print(f"everstep: {verdict.reason}: {steps}, {verdict.num_survived} deaths survived", flush=True)
        return
    first = verdict.first_failure
    log = directory / f"{first.worker}.log" if first else None
    print(f"everstep: {failure_report(verdict, tail(log) if log else [], str(log))}", file=sys.stderr, flush=True)


def node_spec(request: AgentRequest, directory: Path) -> NodeSpec:
    where = urlsplit(request.coordinator_url)
    if where.hostname is None:
        raise UsageError(f"{request.coordinator_url!r} is no URL", hint="such as http://10.0.0.5:7070")
    return NodeSpec(
        job=request.job,
        coordinator_url=request.coordinator_url,
        token_file=_token_path(request.token_file, directory),
        command=request.command,
        num_workers=request.num_workers,
        directory=directory,
        agent=request.name or f"{socket.gethostname()}-{secrets.token_hex(3)}",
        address=request.address or node_address(where.hostname, where.port or 80),
        is_address_given=request.address is not None,
        max_restarts=request.max_restarts,
        heartbeat_s=request.heartbeat_s,
        shutdown_s=request.shutdown_s,
    )


@contextmanager
def _coordinator(request: RunRequest, directory: Path, say: Callable[[str], None]) -> Iterator[tuple[str, Path]]:
    """The URL and token file of the coordinator given, or of one of our own."""
    if request.coordinator_url is not None:
        yield request.coordinator_url, _token_path(request.token_file, directory)
        return
    files = CoordinatorFiles(directory=directory)
    with LocalCoordinator(files, say=say) as local:
        yield local.url, files.token


def find_token(token_file: Path | None) -> str:
    token = env.read_token(token_file) if token_file is not None else env.token()
    if token is None:
        raise UsageError("no token for the coordinator", hint=f"give --token-file or set {env.TOKEN_FILE}")
    return token


def _token_path(token_file: Path | None, directory: Path) -> Path:
    """The file that workers read the token from; a token given in the environment is put into one."""
    if token_file is not None:
        return token_file.resolve()
    path = directory / "token"
    token = find_token(None)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(token + "\n")
    return path


def new_job_id() -> str:
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
