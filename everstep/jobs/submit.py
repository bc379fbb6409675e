"""Job files: submit one, then follow, look at, scale and end what was submitted.

stdout is for machines: YAML, JSON, or the job's own lines. Everything for people goes to stderr."""

from __future__ import annotations

import json
import os
import secrets
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast
from urllib.parse import urlsplit

import typer

from everstep.errors import EverstepError, UsageError
from everstep.job_file.load import Loaded, load_file
from everstep.job_file.order import order_of, policy_of
from everstep.job_file.platform_options import check_platform
from everstep.job_file.schema import Job
from everstep.job_file.tree import dump
from everstep.jobs.log_filter import by_rank, by_worker
from everstep.platforms import job_records
from everstep.platforms.base import JobStatus, Platform, State, Ticket
from everstep.platforms.code_tarball import LARGE_BYTES, Code, pack
from everstep.platforms.job_records import Record
from everstep.platforms.registry import platform_of
from everstep.platforms.secrets import private_files, resolve

if TYPE_CHECKING:
    from rich.console import Console

_LATE_STATUS_S = 5.0  # a platform may say that it runs a moment after its last line


def say(line: str) -> None:
    typer.echo(f"everstep: {line}", err=True)


def leave(code: int) -> NoReturn:
    """All is said. A thread that still waits for the log of a node that is gone must not spoil the exit code, as it can
    when the interpreter ends around it."""
    if threading.active_count() == 1:
        raise typer.Exit(code)
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:  # nobody reads it any more
        code = code or 1
    os._exit(code)


def submit_file(path: Path, changes: Sequence[str], *, platform: str | None, is_dry: bool, follows: bool) -> int:
    loaded = _load(path, changes, platform)
    _refuse_search(loaded.job)
    chosen = platform_of(loaded.job.platform.chosen)
    ticket = _ticket(loaded.job, chosen, None if str(path) == "-" else path)
    rendering = chosen.render(loaded.job, ticket)
    policy_of(order_of(loaded.job, ticket.id))  # refused here, not by a coordinator far away
    missing = _missing_script(loaded.job, ticket.workdir)
    if missing and not is_dry and not loaded.job.setup and (chosen.name == "local" or not loaded.job.image):
        raise UsageError(missing, hint="name a script of that folder, or see `workdir`; nothing else could bring it")
    told = [f"{missing}; the image or `setup` must bring it"] if missing else []
    for note in (*loaded.notes, *rendering.notes, *told):
        say(note)
    if is_dry:
        typer.echo(rendering.text, nl=not rendering.text.endswith("\n"))
        return 0
    if (problem := chosen.detect()) is not None:
        raise UsageError(f"{chosen.name} cannot be used from here: {problem}")
    job_records.make_ready()
    record = _submit(loaded.job, chosen, ticket)
    typer.echo(dump(info_of(record)), nl=False)
    sys.stdout.flush()
    say(f"watch it with: everstep watch {record.id}")
    return watch(record.id) if follows else 0


def _missing_script(job: Job, workdir: Path) -> str:
    entry = job.entry
    if entry.is_module or entry.is_program or (workdir / entry.script).exists():
        return ""
    return f"entrypoint: there is no {entry.script} in {workdir}"


def _refuse_search(job: Job) -> None:
    if job.searcher is not None and job.searcher.name != "single":
        raise UsageError(
            f"searcher.name: {job.searcher.name}: only single is run", hint="--set searcher.name=single runs it once"
        )


def _load(path: Path, changes: Sequence[str], platform: str | None) -> Loaded:
    if platform is not None:
        check_platform(platform)
        changes = [*changes, f"platform.name={platform}"]
    if str(path) == "-":
        from everstep.job_file.load import load

        return load(sys.stdin.read(), changes, name="stdin")
    return load_file(path, changes)


def _ticket(job: Job, platform: Platform, job_file: Path | None) -> Ticket:
    workdir = Path(job.workdir).expanduser().resolve()
    if not workdir.is_dir():
        raise UsageError(f"workdir {workdir} is no folder", hint="the folder that holds the entrypoint")
    job_id = f"{job.slug}-{time.strftime('%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    private = private_files(job.secrets, job_file=job_file)
    code = pack(workdir, ignore_file=job.ignore, private=private) if platform.ships_code else None
    if code is not None:
        say(f"code: {workdir}, {code.files.summary}")
        _check_entrypoint(job, workdir, code)
    if code is not None and len(code.data) > LARGE_BYTES:
        say(f"the code in {workdir} is {len(code.data) >> 20} MiB as a tarball: is there data in it? See {job.ignore}")
    return Ticket(id=job_id, folder=workdir / "runs" / job_id, workdir=workdir, code=code)


def _check_entrypoint(job: Job, workdir: Path, code: Code) -> None:
    script = job.entrypoint[0]
    name = os.path.normpath(script)
    if (workdir / name).is_file() and not os.path.isabs(name) and name not in code.files.taken:
        raise UsageError(
            f"{script} is in {workdir} but not among the {len(code.files.taken)} files that are sent",
            hint=f"it is ignored, or private to its owner: put !/{name} into {job.ignore}",
        )


def _submit(job: Job, platform: Platform, ticket: Ticket) -> Record:
    values = resolve(job.secrets)
    try:
        submitted = platform.submit(job, ticket, values, say)
    except OSError as error:
        raise UsageError(f"not submitted: {error}", hint=f"its files belong in {ticket.folder}") from error
    record = Record(
        id=ticket.id,
        name=job.title,
        platform=platform.name,
        created_at=time.time(),
        folder=str(ticket.folder),
        job=job.dump(),
        job_id=submitted.job_id,
        work_dir=submitted.work_dir,
        runs=submitted.runs,
        natives=submitted.natives,
        min_nodes=job.nodes.min,
        max_nodes=job.nodes.max,
    )
    job_records.save(record)
    return record


def info_of(record: Record) -> dict[str, Any]:
    """What `run` prints: ADS's names first."""
    main, *others = record.runs or ((record.name, record.job_id),)
    return {
        "jobId": record.job_id,
        "workDir": record.work_dir,
        "mainJobRunId": {main[0]: main[1]},
        "otherJobRunIds": [{name: native} for name, native in others],
        "everstep": {"id": record.id, "platform": record.platform, "folder": record.folder},
    }


# --- what was submitted ---------------------------------------------------------------------------


def watch(wanted: str) -> int:
    record = job_records.find(wanted)
    platform = platform_of(record.platform)
    try:
        for line in platform.logs(record, follow=True):
            typer.echo(f"{line.node} | {line.text}")
    except KeyboardInterrupt:
        say(f"{record.id} goes on; `everstep cancel {record.id}` ends it")
        return 130
    status = _last_status(record)
    say(f"{record.id} {status.state}: {status.reason}")
    return 0 if status.state == "succeeded" else 1


def print_logs(wanted: str, *, rank: int | None, worker: str | None, follows: bool) -> int:
    if rank is not None and worker is not None:
        raise UsageError("--rank and --worker at once", hint="give one of them")
    record = job_records.find(wanted)
    platform, is_silent = platform_of(record.platform), True
    lines = platform.logs(record, follow=follows)
    if rank is None and worker is None:
        for line in lines:
            typer.echo(f"{line.node} | {line.text}")
        return 0
    texts: Iterable[str] = (line.text for line in lines)
    chosen = by_worker(texts, worker) if worker is not None else by_rank(texts, rank, _ranks(platform, record), follows)
    for text in chosen:
        is_silent = False
        typer.echo(text)
    if is_silent:
        who = worker or f"rank {rank}"
        say(f"{who} has written nothing, or there is none: `everstep status {record.id}` shows the workers")
    return 0


def _ranks(platform: Platform, record: Record) -> dict[str, int]:
    """By worker, as long as there is somebody to ask."""
    from everstep.client.calls import Coordinator

    try:
        with platform.coordinator(record) as found:
            if found is None:
                return {}
            with Coordinator(*found, record.id) as coordinator:
                return {each.worker: each.rank for each in coordinator.view().workers if each.rank >= 0}
    except EverstepError:
        return {}


def _last_status(record: Record) -> JobStatus:
    deadline = time.monotonic() + _LATE_STATUS_S
    while not (status := _status(record)).is_over and time.monotonic() < deadline:
        time.sleep(0.2)
    return status


def _status(record: Record) -> JobStatus:
    """What is over stays so, and is remembered: the platform may forget it."""
    if record.end is not None:
        state, reason = record.end
        return JobStatus(state=cast(State, state), reason=reason)
    status = platform_of(record.platform).status(record)
    if status.is_over:
        job_records.save(replace(record, end=(status.state, status.reason)))
    return status


def list_jobs(*, is_json: bool) -> int:
    found = [(record, _status_of(record)) for record in job_records.load_all()]
    if is_json:
        rows = [
            {"id": each.id, "name": each.name, "platform": each.platform, **asdict(status)} for each, status in found
        ]
        typer.echo(json.dumps(rows, indent=2))
        return 0
    from rich.console import Console
    from rich.table import Table

    table = Table(title=None if found else "you have submitted no job on this machine")
    for column in ("id", "platform", "state", "age", "reason"):
        table.add_column(column, overflow="fold")
    for record, status in found:
        table.add_row(record.id, record.platform, status.state, _age(record.age_s), status.reason)
    Console().print(table)
    return 0


def print_submitted(wanted: str, *, is_json: bool) -> int:
    record = job_records.find(wanted)
    platform, status = platform_of(record.platform), _status(record)
    if is_json:
        told = {"id": record.id, "name": record.name, "platform": record.platform, **asdict(status)}
        typer.echo(json.dumps(told, indent=2))
        return 0
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(
        title=f"{record.id} on {record.platform}: {status.state}", caption=status.reason, title_justify="left"
    )
    for column in ("node", "state", "where", "reason"):
        table.add_column(column)
    for node in status.nodes:
        table.add_row(node.name, node.state, node.where, node.reason)
    console.print(table)
    _print_workers(platform, record, console)
    return 0


def _print_workers(platform: Platform, record: Record, console: Console) -> None:
    from everstep.cli.status import newest_line, render
    from everstep.client.calls import Coordinator

    try:
        with platform.coordinator(record) as found:
            if found is None:
                return
            with Coordinator(*found, record.id) as coordinator:
                console.print(render(coordinator.view()))
                if line := newest_line(coordinator.metrics(since=-50, limit=50).reports):
                    console.print(line, markup=False, highlight=False, soft_wrap=True)
    except EverstepError as error:
        say(f"its coordinator does not answer: {error.message}")


def show_config(wanted: str | None, file: Path | None) -> int:
    if (wanted is None) == (file is None):
        raise UsageError("which job?", hint="give its id, or -f and what `everstep run -f` has printed")
    record = job_records.find(wanted if wanted is not None else _id_in(file))
    typer.echo(dump({**info_of(record), "runtime": _runtime_of(record), "job": dict(record.job)}), nl=False)
    return 0


def _runtime_of(record: Record) -> dict[str, Any]:
    """Who is MAIN, and where it is met, by ADS's names."""
    main = (record.runs or ((record.name, record.job_id),))[0][0]
    try:
        with platform_of(record.platform).coordinator(record) as found:
            url = urlsplit(found[0]) if found is not None else None
    except EverstepError as error:
        return {"main": main, "coordinator": f"not found: {error.message}"}
    if url is None:
        return {"main": main, "coordinator": "none is running, or it cannot be reached from here"}
    return {"main": main, "coordinator": url.geturl(), "MASTER_ADDR": url.hostname, "MASTER_PORT": url.port}


def _id_in(file: Path | None) -> str:
    import yaml

    assert file is not None
    try:
        told = yaml.safe_load(file.read_text())
        return str(told["everstep"]["id"] if "everstep" in told else told["jobId"])
    except (OSError, yaml.YAMLError, KeyError, TypeError) as error:
        raise UsageError(
            f"{file} is not what `everstep run -f` has printed: {error}", hint="… | tee info.yaml"
        ) from None


def scale(wanted: str, num_nodes: int) -> int:
    record = job_records.find(wanted)
    platform = platform_of(record.platform)
    if not record.min_nodes <= num_nodes <= record.max_nodes:
        raise UsageError(
            f"{num_nodes} nodes: the job takes {record.min_nodes} to {record.max_nodes}",
            hint="the job file's `nodes: MIN:MAX` says how many there may be",
        )
    if (status := _status(record)).is_over:
        raise UsageError(f"{record.id} is over: {status.state}, {status.reason}")
    platform.scale(record, num_nodes, say)
    say(f"{record.id}: {num_nodes} nodes from now on")
    return 0


def cancel(wanted: str) -> int:
    record = job_records.find(wanted)
    platform = platform_of(record.platform)
    platform.cancel(record, say)
    status = _status(record)
    say(f"{record.id} {status.state}: {status.reason}")
    return 0


def _status_of(record: Record) -> JobStatus:
    """A platform that cannot be asked now must not hide the other jobs."""
    try:
        return _status(record)
    except (EverstepError, ImportError, OSError) as error:
        return JobStatus(state="unknown", reason=str(error).splitlines()[0])


def _age(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
