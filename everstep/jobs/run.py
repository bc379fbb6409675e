"""`everstep run` and `everstep agent`: put together coordinator, agent and display, and reply with an exit code."""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from everstep import env
from everstep.client.calls import Coordinator
from everstep.errors import EverstepError, UsageError
from everstep.jobs.check import check_node
from everstep.jobs.node_spec import AgentRequest, node_spec, token_path
from everstep.launcher import run_record
from everstep.launcher.agent import Agent
from everstep.launcher.console import Console
from everstep.launcher.decisions import Verdict
from everstep.launcher.display import JobDisplay
from everstep.launcher.endpoint import as_job_id, host_or_join, join, save_token
from everstep.launcher.local_coordinator import (
    CoordinatorFiles,
    LocalCoordinator,
    Start,
    earlier_port,
    private_directory,
)
from everstep.launcher.local_worker import LocalWorker
from everstep.launcher.logs import FilteredCopy, tail
from everstep.launcher.node import ENDING_SIGNALS
from everstep.launcher.shown_streams import STDERR, STDOUT, Shown
from everstep.launcher.starter import Starter
from everstep.launcher.summary import LastWords, failure_report, summary
from everstep.launcher.torchrun_options import NodesRange, Rendezvous
from everstep.launcher.worker_files import WorkerFiles
from everstep.process import ENDED, Child
from everstep.wire import JobSpec, Policy, policy_problems


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
    job, is_hosting = job_id(request), is_host(request)
    policy = policy_of(request)
    taken_up = run_record.unfinished(request.log_dir, job) if is_hosting else None
    directory = private_directory(taken_up or request.log_dir / _folder(request, job))
    run_record.begin(directory, job, is_host=is_hosting)
    events = _events_path(directory)
    with (
        _display(request.shown, request.copied_texts, directory) as display,
        coordinator_of(request, job, directory, is_hosting, policy.join_s, display.say, starter.start_service) as (
            url,
            token,
        ),
    ):
        run_record.update(directory, url=url)
        for note in request.notes:
            display.say(note)
        if taken_up is not None:
            display.say(f"job {job} was not over: it goes on, with the options that it had")
        display.follow_events(events)
        create_job(url, token, job, name=request.name, policy=policy)
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
        if request.wants_check:
            checked = check_node(agent_request, policy, directory, display.say)
            if checked.exit_code is not None:
                return checked.exit_code
            agent_request = replace(agent_request, fitness=checked.fitness)
        code = _run_node(agent_request, directory, display, starter)
        if request.coordinator_url is None:
            _tell_orphans(url, token, job, directory, is_hosting=is_hosting)
        return code


def _tell_orphans(url: str, token: Path, job: str, directory: Path, *, is_hosting: bool) -> None:
    """Whoever interrupts the node that hosts the coordinator leaves the other nodes without one."""
    record = run_record.read(directory)
    if record is None or record.state != run_record.INTERRUPTED or not (directory / "coordinator.url").exists():
        return
    try:
        with closing(Coordinator(url, env.read_token(token), job)) as coordinator:
            left = [node.agent for node in coordinator.view().nodes if node.is_present]
    except EverstepError:
        return
    if left:
        run_record.update(directory, state=run_record.LEFT)
        again = "type the same line here again" if is_hosting else f"add --job {job} to the same line here"
        told = f"{', '.join(left)} cannot go on for long without this coordinator: {again}, or end them by Ctrl-C there"
        Console().print(err=[f"everstep: {told}"])


def create_job(url: str, token: Path, job: str, *, name: str, policy: Policy) -> None:
    """Or find it as it is, unless it is over."""
    with closing(Coordinator(url, env.read_token(token), job)) as coordinator:
        view = coordinator.create_job(JobSpec(name=name, policy=policy))
    if view.is_finished or view.is_stopped:
        raise UsageError(f"job {job} is over: {view.reason}", hint="give another --job or --rdzv-id")


def job_id(request: RunRequest) -> str:
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


def _folder(request: RunRequest, job: str) -> str:
    """Of this node's files. A job that was named can be taken up again; who only says where to meet starts anew."""
    is_named = request.job is not None or request.nodes.max == 1
    return job if is_named else new_job_id(job)


def is_host(request: RunRequest) -> bool:
    """Whether the nodes' endpoint is on this one."""
    endpoint, told = request.rendezvous.endpoint, request.rendezvous.is_host
    if endpoint is None or request.nodes.max == 1 or request.coordinator_url is not None:
        return False
    return endpoint.may_host(told)


def policy_of(request: RunRequest) -> Policy:
    nodes = request.nodes
    settings = {
        "start_nodes": nodes.min,
        "min_nodes": nodes.min,
        "max_nodes": nodes.max if nodes.is_limit else None,
        "start_workers": nodes.min * request.num_workers,
        **({} if nodes.is_limit else {"last_call_s": 0.0}),  # nobody else is expected
    }
    policy = Policy(**{**settings, **request.policy})  # type: ignore[arg-type]
    for problem in policy_problems(policy):
        options = re.sub(r"[a-z]+(_[a-z]+)+", lambda name: f"--{name[0].replace('_', '-')}", problem)
        raise UsageError(options, hint="see docs/configuration.md, the policy of a job")
    return policy


def run_agent(request: AgentRequest, starter: Starter, *, check_by: Policy | None = None) -> int:
    """One node's part of a job that exists. `check_by`: first measure it, with all that start by this policy."""
    directory = private_directory(request.log_dir / request.job)
    run_record.begin(directory, request.job, is_host=False)
    run_record.update(directory, url=request.coordinator_url)
    events = _events_path(directory)
    with _display(request.shown, request.copied_texts, directory) as display:
        display.follow_events(events)
        if check_by is not None:
            checked = check_node(request, check_by, directory, display.say)
            if checked.exit_code is not None:
                return checked.exit_code
            request = replace(request, fitness=checked.fitness)
        return _run_node(request, directory, display, starter)


def _display(shown: Shown, copied_texts: Mapping[int, tuple[str, ...]], directory: Path) -> JobDisplay:
    names = {STDOUT: "filtered_stdout.log", STDERR: "filtered_stderr.log"}
    copies = {stream: FilteredCopy(directory / names[stream], texts) for stream, texts in copied_texts.items()}
    return JobDisplay(shown=shown, copies=copies)


def _run_node(request: AgentRequest, directory: Path, display: JobDisplay, starter: Starter) -> int:
    def follow(worker: LocalWorker) -> None:
        place, child = worker.place, worker.child
        display.follow(place.worker, place.local_rank, worker.files, lambda: child.state != ENDED)

    node = node_spec(request, directory)
    verdict = Agent(node, starter, say=display.say, on_worker=follow, on_end=display.flush).run()
    display.close()
    _report(verdict, display, directory)
    run_record.update(
        directory,
        state=_state(verdict),
        reason=verdict.reason,
        exit_code=verdict.exit_code,
        num_steps=display.num_steps_done,
        elapsed_s=round(display.elapsed_s, 1),
    )
    return verdict.exit_code


def _state(verdict: Verdict) -> str:
    if verdict.was_interrupted:
        return run_record.INTERRUPTED
    return run_record.FINISHED if verdict.is_good else run_record.FAILED


def _events_path(directory: Path) -> Path:
    """Where this process and all that it starts write their events."""
    return Path(os.environ.setdefault(env.EVENTS, str(directory / "events.jsonl")))


def _report(verdict: Verdict, display: JobDisplay, directory: Path) -> None:
    if verdict.is_good:
        told = [summary(verdict, num_steps=display.num_steps_done, elapsed_s=display.elapsed_s, good_s=display.good_s)]
    else:
        first = verdict.first_failure
        told = failure_report(verdict, _last_words(directory / first.worker) if first else None)
    Console().print(err=[line if line.startswith(" ") else f"everstep: {line}" for line in told])


def _last_words(directory: Path) -> LastWords:
    files = WorkerFiles(directory=directory)
    return LastWords(
        directory=str(directory), stdout=tail(files.stdout), stderr=tail(files.stderr), error=files.error_message()
    )


@contextmanager
def coordinator_of(
    request: RunRequest,
    job: str,
    directory: Path,
    is_hosting: bool,
    patience_s: float,
    say: Callable[[str], None],
    start: Start = Child.start,
) -> Iterator[tuple[str, Path]]:
    """The URL and token file of the coordinator given, of the one at the endpoint, or of one of our own."""
    endpoint = request.rendezvous.endpoint
    if request.coordinator_url is not None:
        yield request.coordinator_url, token_path(request.token_file, directory)
    elif request.nodes.max == 1 or endpoint is None:
        files = CoordinatorFiles(directory=directory)
        with LocalCoordinator(files, say=say, port=earlier_port(files), start=start) as local:
            yield local.url, files.token
    elif is_hosting:
        with host_or_join(endpoint, job, directory, request.token_file, patience_s, say) as (url, token):
            yield url, token
    else:
        found = join(endpoint, job, request.token_file, patience_s, say)
        yield endpoint.url, save_token(directory / "token", found)


def new_job_id(name: str | None = None) -> str:
    """A new one each time, named for torchrun's `--rdzv-id` if there is one: people use that again and again."""
    stamp = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    return f"{as_job_id(name)}-{stamp}" if name else stamp
