"""`everstep run` and `everstep join`: combine coordinator, agent and display, and return an exit code."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from everstep import env
from everstep.checkpoint.index import place_of_job
from everstep.client.calls import Coordinator
from everstep.errors import EverstepError
from everstep.jobs.leave_record import add_checkpoints, write_about
from everstep.jobs.meeting import address_of_page, coordinator_of, create_job, is_host, job_folder, job_id, policy_of
from everstep.jobs.node_spec import node_spec
from everstep.jobs.options import JoinOptions, RunOptions
from everstep.jobs.tokens import token_path
from everstep.launcher import run_record
from everstep.launcher.agent import Agent
from everstep.launcher.console import Console
from everstep.launcher.decisions import Verdict
from everstep.launcher.display import JobDisplay
from everstep.launcher.event_files import EventFiles
from everstep.launcher.local_coordinator import private_directory
from everstep.launcher.local_worker import LocalWorker
from everstep.launcher.log_sender import LogSender
from everstep.launcher.logs import FilteredCopy, tail
from everstep.launcher.node import NodeSpec
from everstep.launcher.node_bounds import NodeBounds
from everstep.launcher.shown_streams import STDERR, STDOUT, Shown
from everstep.launcher.starter import Starter
from everstep.launcher.summary import LastWords, failure_report, last_line, summary
from everstep.launcher.torchrun_options import parse_ranks, parse_signals, parse_streams, parse_texts
from everstep.launcher.worker_files import WorkerFiles
from everstep.page.address import show_page
from everstep.process import ENDED
from everstep.record.about import ABOUT, CANCELED, FAILED, STORE, SUCCEEDED, RecordAbout
from everstep.record.argument_masks import masked_arguments, secret_values
from everstep.record.log_masks import Masks
from everstep.wire import Policy, to_json
from everstep.wire.tokens import parse_tokens

_STATES = {run_record.FINISHED: SUCCEEDED, run_record.FAILED: FAILED, run_record.INTERRUPTED: CANCELED}
_SEND_S = 5.0  # for the last lines, at the end of a node


def run_job(
    options: RunOptions,
    name: str,
    command: tuple[str, ...],
    num_workers: int,
    starter: Starter,
    notes: tuple[str, ...] = (),
) -> int:
    """A job from its creation to its end, or this node's part of it."""
    job, is_hosting, rendezvous = job_id(options), is_host(options), options.rendezvous
    policy = policy_of(options, num_workers, options.policy)
    signals = parse_signals(options.signals_to_handle)
    taken_up = run_record.unfinished(options.log_dir, job) if is_hosting else None
    directory = private_directory(taken_up or options.log_dir / job_folder(options, job))
    run_record.begin(directory, job, is_host=taken_up is not None)
    events = env.share_events(directory / "events.jsonl")
    with (
        JobDisplay(shown=_shown(options), copies=_copies(options, directory)) as display,
        coordinator_of(options, job, directory, policy.join_s, display.say, starter.start_service) as (url, token),
    ):
        is_ours = is_hosting and (directory / STORE).exists()  # another node of this machine may have been first
        run_record.update(directory, url=url, token_file=str(token.absolute()), is_host=is_ours)
        for note in (*notes, *rendezvous.notes):
            display.say(note)
        if taken_up is not None:
            display.say(f"job {job} was not over: continuing it with its previous options")
        display.follow_events(events)
        shown: dict[str, Any] = {
            "command": masked_arguments(command, secret_values(env.everything())),
            "workers": num_workers,
        }
        create_job(url, token, job, name=name, policy=policy, config=shown)
        display.say(f"job {job}, logs in {directory}")
        if options.page:  # before anything that is said also goes to the job's log: the address has a code in it
            _show_page(url, token, job, display.say)
        node = replace(
            node_spec(
                options,
                url=url,
                token=token,
                job=job,
                command=command,
                num_workers=num_workers,
                directory=directory,
            ),
            node_rank=-1 if rendezvous.node_rank is None else rendezvous.node_rank,
            role=options.role,
            run_id=rendezvous.rdzv_id,
            is_local_rank_virtual=options.virtual_local_rank,
            signals=signals,
            shutdown_s=options.shutdown_s,
            heartbeat_s=policy.heartbeat_s,
        )
        code = _run_node(node, display, starter, token, check_by=policy if options.check else None)
        if options.coordinator is None:
            _warn_about_orphans(url, token, job, directory, is_hosting=is_hosting)
        view = _last_view(url, token, job)
    if (directory / STORE).exists():  # the coordinator was ours
        shown["policy"] = asdict(policy)
        _leave_record(directory, RecordAbout(job=job, name=name, configuration=shown, view=view), display.elapsed_s)
        if options.page:
            Console().print(err=[f"everstep: open the page again with: everstep page {job}"])
    return code


def _show_page(url: str, token: Path, job: str, say: Callable[[str], None]) -> None:
    with closing(Coordinator(url, env.read_token(token), job)) as coordinator:
        show_page(say, address_of_page(coordinator), is_opened=True)


def _last_view(url: str, token: Path, job: str) -> dict[str, Any]:
    try:
        with closing(Coordinator(url, env.read_token(token), job)) as coordinator:
            view: dict[str, Any] = json.loads(to_json(coordinator.view()))
            return view
    except EverstepError:
        return {}


def _leave_record(directory: Path, about: RecordAbout, elapsed_s: float) -> None:
    """The coordinator's files are there; this says what they are, and how the job ended."""
    record, now = run_record.read(directory), time.time()
    if record is None or record.state not in _STATES:
        return  # others continue it
    ended = replace(about, state=_STATES[record.state], reason=record.reason, began_at=now - elapsed_s, ended_at=now)
    try:
        write_about(directory, ended)
        add_checkpoints(directory, ended, place_of_job(about.job) or "")
    except (EverstepError, OSError) as error:
        Console().print(err=[f"everstep: {directory / ABOUT} is not complete: {error}"])


def run_joined(options: JoinOptions, command: tuple[str, ...], starter: Starter) -> int:
    """This node's part of a job that exists."""
    directory = private_directory(options.log_dir / options.job)
    token = token_path(options.token_file, directory)
    node = node_spec(
        options,
        url=options.coordinator,
        token=token,
        job=options.job,
        command=command,
        num_workers=options.workers,
        directory=directory,
        name=options.name,
    )
    node = replace(node, shutdown_s=options.shutdown_s, heartbeat_s=options.heartbeat_s)
    return run_agent(node, starter, token, shown=Shown(is_quiet=options.quiet))


def run_agent(
    node: NodeSpec, starter: Starter, token: Path, *, check_by: Policy | None = None, shown: Shown | None = None
) -> int:
    """The agent of a node, with its display. `check_by`: first measure it, with all nodes that start by this policy."""
    run_record.begin(node.directory, node.job, is_host=False)
    run_record.update(node.directory, url=node.coordinator_url, token_file=str(token.absolute()))
    events = env.share_events(node.directory / "events.jsonl")
    with JobDisplay(shown=shown or Shown(), copies={}) as display:
        display.follow_events(events)
        return _run_node(node, display, starter, token, check_by=check_by)


def _warn_about_orphans(url: str, token: Path, job: str, directory: Path, *, is_hosting: bool) -> None:
    """Interrupting the node that hosts the coordinator leaves the other nodes without one."""
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
        warning = f"{', '.join(left)} cannot run for long without this coordinator: {again}, or press Ctrl-C there"
        Console().print(err=[f"everstep: {warning}"])


def _shown(options: RunOptions) -> Shown:
    return Shown(
        redirects=parse_streams(options.redirects, option="--redirects"),
        tee=parse_streams(options.tee, option="--tee"),
        local_ranks=parse_ranks(options.local_ranks_filter),
        is_quiet=options.quiet,
    )


def _copies(options: RunOptions, directory: Path) -> dict[int, FilteredCopy]:
    """By stream: the files for lines with one of the given texts."""
    texts = {STDOUT: options.duplicate_stdout_filters, STDERR: options.duplicate_stderr_filters}
    names = {STDOUT: "filtered_stdout.log", STDERR: "filtered_stderr.log"}
    return {each: FilteredCopy(directory / names[each], parse_texts(text)) for each, text in texts.items() if text}


def _run_node(node: NodeSpec, display: JobDisplay, starter: Starter, token: Path, *, check_by: Policy | None) -> int:
    if check_by is not None:
        from everstep.jobs.check import check_node

        checked = check_node(node, check_by, token, display.say)
        if checked.exit_code is not None:
            return checked.exit_code
        node = replace(node, fitness=checked.fitness)

    with (
        _log_sender(node, display) as sender,
        _event_files(node, display) as event_files,
        _node_bounds(node, display),
    ):

        def follow(worker: LocalWorker) -> None:
            place, child = worker.place, worker.child
            display.follow(place.worker, place.local_rank, worker.files, lambda: child.state != ENDED)
            rank = place.order.first_rank + place.local_rank
            sender.follow(place.worker, worker.files, rank=rank, is_alive=lambda: child.state != ENDED)
            event_files.follow(place.worker, child.pid, rank=rank)

        def finish() -> None:
            display.flush()
            event_files.close(_SEND_S)
            sender.close(_SEND_S)

        verdict = Agent(node, starter, say=display.say, on_worker=follow, on_end=finish).run()
    display.close()
    words = _last_words(node.directory / verdict.first_failure.worker) if verdict.first_failure else None
    _report(verdict, display, words)
    run_record.update(
        node.directory,
        state=_state(verdict),
        reason=verdict.reason,
        error=display.masked(last_line(verdict, words)),
        exit_code=verdict.exit_code,
        num_steps=display.num_steps_done,
        elapsed_s=round(display.elapsed_s, 1),
    )
    return verdict.exit_code


def _log_sender(node: NodeSpec, display: JobDisplay) -> LogSender:
    """What workers print, and what is said here, also goes to the coordinator; no secret does."""
    tokens = env.read_token(node.token_file)
    masks = Masks([*node.hidden, *(token.word for token in parse_tokens(tokens))])
    display.hide(masks)
    sender = LogSender(
        lambda: Coordinator(node.coordinator_url, tokens, node.job),
        agent=node.agent,
        directory=node.directory,
        masks=masks,
        say=display.say,
    )
    display.repeat_to(sender.note)
    return sender


def _event_files(node: NodeSpec, display: JobDisplay) -> EventFiles:
    given, tokens = env.value(env.TENSORBOARD), env.read_token(node.token_file)
    return EventFiles(
        lambda: Coordinator(node.coordinator_url, tokens, node.job),
        root=None if given == "off" else Path(given or ".").absolute(),
        directory=node.directory,
        say=display.say,
    )


def _node_bounds(node: NodeSpec, display: JobDisplay) -> NodeBounds:
    tokens = env.read_token(node.token_file)
    return NodeBounds(
        lambda: Coordinator(node.coordinator_url, tokens, node.job),
        agent=node.agent,
        events=env.share_events(node.directory / "events.jsonl"),
        directory=node.directory,
        say=display.say,
    )


def _state(verdict: Verdict) -> str:
    if verdict.was_interrupted:
        return run_record.INTERRUPTED
    return run_record.FINISHED if verdict.is_good else run_record.FAILED


def _report(verdict: Verdict, display: JobDisplay, words: LastWords | None) -> None:
    if verdict.is_good:
        lines = [summary(verdict, num_steps=display.num_steps_done, elapsed_s=display.elapsed_s, good_s=display.good_s)]
    else:
        lines = failure_report(verdict, words)
    lines = [display.masked(line) for line in lines]
    Console().print(err=[line if line.startswith(" ") else f"everstep: {line}" for line in lines])


def _last_words(directory: Path) -> LastWords:
    files = WorkerFiles(directory=directory)
    return LastWords(
        directory=str(directory), stdout=tail(files.stdout), stderr=tail(files.stderr), error=files.error_message()
    )
