"""`everstep run` and `everstep agent`: put together coordinator, agent and display, and reply with an exit code."""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from everstep import env
from everstep.cli.torchrun_options import NodesRange, Rendezvous
from everstep.client import Coordinator
from everstep.errors import UsageError
from everstep.launcher.agent import Agent, Worker, node_address
from everstep.launcher.console import Console
from everstep.launcher.display import Display
from everstep.launcher.endpoint import as_job_id, host_or_join, join, private_file
from everstep.launcher.local_coordinator import CoordinatorFiles, LocalCoordinator, private_directory
from everstep.launcher.logs import FilteredCopy, tail
from everstep.launcher.node import ENDING_SIGNALS, NodeSpec
from everstep.launcher.report import LastWords, failure_report, summary
from everstep.launcher.starter import Starter
from everstep.launcher.streams import STDERR, STDOUT, Shown
from everstep.launcher.verdict import Verdict
from everstep.launcher.worker_files import WorkerFiles
from everstep.process import ENDED
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
    node_rank: int = -1
    address: str | None = None
    role: str = "default"
    run_id: str | None = None
    is_local_rank_virtual: bool = False
    signals: tuple[int, ...] = ENDING_SIGNALS
    shutdown_s: float = 30.0
    heartbeat_s: float = 1.0
    shown: Shown = field(default_factory=Shown)
    copied_texts: Mapping[int, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRequest:
    command: tuple[str, ...]
    name: str
    num_workers: int
    log_dir: Path
    coordinator_url: str | None = None
    token_file: Path | None = None
    job: str | None = None
    nodes: NodesRange = field(default_factory=NodesRange)
    rendezvous: Rendezvous = field(default_factory=Rendezvous)
    address: str | None = None
    role: str = "default"
    is_local_rank_virtual: bool = False
    signals: tuple[int, ...] = ENDING_SIGNALS
    shutdown_s: float = 30.0
    wants_check: bool = False
    shown: Shown = field(default_factory=Shown)
    copied_texts: Mapping[int, tuple[str, ...]] = field(default_factory=dict)  # by stream; see FilteredCopy
    policy: Mapping[str, float | int] = field(default_factory=dict)  # what was asked for; else the defaults
    notes: tuple[str, ...] = ()  # on options that change nothing


def run_job(request: RunRequest, starter: Starter) -> int:
    """A job from its creation to its end, or this node's part of it."""
    job, is_host = _job_id(request), _is_host(request)
    directory = private_directory(request.log_dir / job)
    events = _events_path(directory)
    policy = _policy(request)
    with (
        _display(request.shown, request.copied_texts, directory) as display,
        _coordinator(request, job, directory, is_host, policy.join_s, display.say) as (url, token),
    ):
        for note in request.notes:
            display.say(note)
        display.follow_events(events)
        with closing(Coordinator(url, env.read_token(token), job)) as coordinator:
            view = coordinator.create_job(JobSpec(name=request.name, policy=policy))
        if view.is_finished or view.is_stopped:
            raise UsageError(f"job {job} is over: {view.reason}", hint="give another --job, or none for a new one")
        display.say(f"job {job}, logs in {directory}")
        agent_request = AgentRequest(
            command=request.command,
            coordinator_url=url,
            job=job,
            num_workers=request.num_workers,
            log_dir=request.log_dir,
            token_file=token,
            node_rank=-1 if request.rendezvous.node_rank is None else request.rendezvous.node_rank,
            address=request.address,
            role=request.role,
            run_id=request.rendezvous.rdzv_id,
            is_local_rank_virtual=request.is_local_rank_virtual,
            signals=request.signals,
            shutdown_s=request.shutdown_s,
            heartbeat_s=policy.heartbeat_s,
        )
        return _run_node(agent_request, directory, display, starter)


def _job_id(request: RunRequest) -> str:
    """A new one for this node alone; for several, the same on all of them."""
    rendezvous = request.rendezvous
    if request.job is not None:
        return request.job
    if request.nodes.max == 1:
        return new_job_id(rendezvous.rdzv_id)
    if rendezvous.endpoint is None and request.coordinator_url is None:
        raise UsageError(
            f"{request.nodes.max} nodes, but nothing says where they meet",
            hint="give all of them the same --rdzv-endpoint HOST:PORT, or --coordinator URL and --job ID",
        )
    if rendezvous.rdzv_id is None and rendezvous.endpoint is None:
        raise UsageError("several nodes at one coordinator need a name for their job", hint="--job ID or --rdzv-id ID")
    return as_job_id(rendezvous.rdzv_id or f"job-{rendezvous.endpoint}")


def _is_host(request: RunRequest) -> bool:
    """Whether the nodes' endpoint is on this one."""
    endpoint, is_host = request.rendezvous.endpoint, request.rendezvous.is_host
    if endpoint is None or request.nodes.max == 1 or request.coordinator_url is not None:
        return False
    return endpoint.is_here() if is_host is None else is_host


def _policy(request: RunRequest) -> Policy:
    nodes = request.nodes
    settings = {
        "start_nodes": nodes.min,
        "min_nodes": nodes.min,
        "max_nodes": nodes.max,
        "start_workers": nodes.min * request.num_workers,
    }
    return Policy(**{**settings, **request.policy})  # type: ignore[arg-type]


def run_agent(request: AgentRequest, starter: Starter) -> int:
    """One node's part of a job that exists."""
    directory = private_directory(request.log_dir / request.job)
    _events_path(directory)
    with _display(request.shown, request.copied_texts, directory) as display:
        return _run_node(request, directory, display, starter)


def _display(shown: Shown, copied_texts: Mapping[int, tuple[str, ...]], directory: Path) -> Display:
    names = {STDOUT: "filtered_stdout.log", STDERR: "filtered_stderr.log"}
    copies = {stream: FilteredCopy(directory / names[stream], texts) for stream, texts in copied_texts.items()}
    return Display(shown=shown, copies=copies)


def _run_node(request: AgentRequest, directory: Path, display: Display, starter: Starter) -> int:
    def follow(worker: Worker) -> None:
        place, child = worker.place, worker.child
        display.follow(place.worker, place.local_rank, worker.files, lambda: child.state != ENDED)

    verdict = Agent(node_spec(request, directory), starter, say=display.say, on_worker=follow).run()
    display.close()
    _report(verdict, display, directory)
    return verdict.exit_code


def _events_path(directory: Path) -> Path:
    """Where this process and all that it starts write their events."""
    return Path(os.environ.setdefault(env.EVENTS, str(directory / "events.jsonl")))


def _report(verdict: Verdict, display: Display, directory: Path) -> None:
    if verdict.is_good:
        told = [summary(verdict, num_steps=display.num_steps, elapsed_s=display.elapsed_s, good_s=display.good_s)]
    else:
        first = verdict.first_failure
        told = failure_report(verdict, _last_words(directory / first.worker) if first else None)
    Console().print(err=[line if line.startswith(" ") else f"everstep: {line}" for line in told])


def _last_words(directory: Path) -> LastWords:
    files = WorkerFiles(directory=directory)
    return LastWords(
        directory=str(directory), stdout=tail(files.stdout), stderr=tail(files.stderr), error=files.error_message()
    )


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
        node_rank=request.node_rank,
        heartbeat_s=request.heartbeat_s,
        shutdown_s=request.shutdown_s,
        role=request.role,
        run_id=request.run_id,
        is_local_rank_virtual=request.is_local_rank_virtual,
        signals=request.signals,
    )


@contextmanager
def _coordinator(
    request: RunRequest, job: str, directory: Path, is_host: bool, patience_s: float, say: Callable[[str], None]
) -> Iterator[tuple[str, Path]]:
    """The URL and token file of the coordinator given, of the one at the endpoint, or of one of our own."""
    endpoint = request.rendezvous.endpoint
    if request.coordinator_url is not None:
        yield request.coordinator_url, _token_path(request.token_file, directory)
    elif request.nodes.max == 1 or endpoint is None:
        files = CoordinatorFiles(directory=directory)
        with LocalCoordinator(files, say=say) as local:
            yield local.url, files.token
    elif is_host:
        with host_or_join(endpoint, job, directory, request.token_file, patience_s, say) as (url, token):
            yield url, token
    else:
        found = join(endpoint, job, request.token_file, patience_s, say)
        yield endpoint.url, private_file(directory / "token", found + "\n")


def find_token(token_file: Path | None) -> str:
    token = env.read_token(token_file) if token_file is not None else env.token()
    if token is None:
        raise UsageError("no token for the coordinator", hint=f"give --token-file or set {env.TOKEN_FILE}")
    return token


def _token_path(token_file: Path | None, directory: Path) -> Path:
    """The file that workers read the token from; a token given in the environment is put into one."""
    if token_file is not None:
        return token_file.resolve()
    return private_file(directory / "token", find_token(None) + "\n")


def new_job_id(name: str | None = None) -> str:
    """A new one each time, named for torchrun's `--rdzv-id` if there is one: people use that again and again."""
    stamp = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    return f"{as_job_id(name)}-{stamp}" if name else stamp
