"""Submit a job: check its file, pack its code, render it, send what was rendered. Notes are returned, not printed."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from everstep.errors import UsageError
from everstep.job_file.load import Loaded, load, load_file
from everstep.job_file.order import order_of, policy_of
from everstep.job_file.platform_options import check_platform
from everstep.job_file.schema import Job
from everstep.platforms import job_records
from everstep.platforms.base import Platform, Say, SubmitRequest, Ticket
from everstep.platforms.job_records import JobRecord
from everstep.platforms.registry import platform_of
from everstep.platforms.secrets import private_files, resolve
from everstep.storage.code_archive import LARGE_BYTES, Code, pack


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """A job that was checked, packed and rendered: ready to be sent or shown."""

    job: Job
    platform: Platform
    request: SubmitRequest
    notes: tuple[str, ...]  # what its submitter should know
    missing: str  # why the entrypoint is not in the code; empty: it is


def prepare(path: Path, changes: Sequence[str] = (), *, platform: str | None = None) -> Prepared:
    """Read the file at `path`. `changes`: KEY=VALUE, as `--set` takes them."""
    return _prepare(load_file(path, _with_platform(changes, platform)), path)


def prepare_text(text: str, changes: Sequence[str] = (), *, platform: str | None = None, name: str) -> Prepared:
    """The same for a file's content; `name`: the file's name in error messages."""
    return _prepare(load(text, _with_platform(changes, platform), name=name), None)


def submit(prepared: Prepared, say: Say | None = None) -> JobRecord:
    """Send it, and store its record. `say` gets the progress, for people."""
    job, platform, ticket = prepared.job, prepared.platform, prepared.request.ticket
    if prepared.missing and not job.setup and (platform.name == "local" or not job.image):
        raise UsageError(
            prepared.missing,
            hint="name a script in that folder, or see `workdir`; nothing else could provide it",
            code="entrypoint-missing",
        )
    if (problem := platform.detect()) is not None:
        raise UsageError(f"{platform.name} cannot be used from here: {problem}", code="platform-unusable")
    job_records.make_ready()
    values = resolve(job.secrets)
    try:
        submitted = platform.submit(prepared.request, values, say or (lambda _line: None))
    except OSError as error:
        raise UsageError(
            f"not submitted: {error}", hint=f"its files belong in {ticket.folder}", code="job-folder-unusable"
        ) from error
    record = JobRecord(
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


def _with_platform(changes: Sequence[str], platform: str | None) -> Sequence[str]:
    if platform is None:
        return changes
    check_platform(platform)
    return [*changes, f"platform.name={platform}"]


def _prepare(loaded: Loaded, job_file: Path | None) -> Prepared:
    job = loaded.job
    _refuse_search(job)
    platform = platform_of(job.platform.chosen)
    ticket, notes = _ticket(job, platform, job_file)
    request = platform.render(job, ticket)
    policy_of(order_of(job, ticket.id))  # refused here, not by a coordinator far away
    if missing := _missing_script(job, ticket.workdir):
        notes = (*notes, f"{missing}; the image or `setup` must provide it")
    return Prepared(
        job=job,
        platform=platform,
        request=request,
        notes=(*loaded.notes, *request.notes, *notes),
        missing=missing,
    )


def _missing_script(job: Job, workdir: Path) -> str:
    entry = job.entry
    if entry.is_module or entry.is_program or (workdir / entry.script).exists():
        return ""
    return f"entrypoint: there is no {entry.script} in {workdir}"


def _refuse_search(job: Job) -> None:
    if job.searcher is not None and job.searcher.name != "single":
        raise UsageError(
            f"searcher.name: {job.searcher.name}: only single is supported",
            hint="--set searcher.name=single runs it once",
            code="searcher-not-supported",
        )


def _ticket(job: Job, platform: Platform, job_file: Path | None) -> tuple[Ticket, tuple[str, ...]]:
    workdir = Path(job.workdir).expanduser().resolve()
    if not workdir.is_dir():
        raise UsageError(
            f"workdir {workdir} is not a folder", hint="give the folder of the entrypoint", code="workdir-missing"
        )
    job_id = f"{job.slug}-{time.strftime('%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    private = private_files(job.secrets, job_file=job_file)
    code = pack(workdir, ignore_file=job.ignore, private=private) if platform.ships_code else None
    notes = []
    if code is not None:
        notes.append(f"code: {workdir}, {code.files.summary}")
        _check_entrypoint(job, workdir, code)
    if code is not None and len(code.data) > LARGE_BYTES:
        size = f"{len(code.data) >> 20} MiB as a tarball"
        notes.append(f"the code in {workdir} is {size}: does it contain data? See {job.ignore}")
    return Ticket(id=job_id, folder=workdir / "runs" / job_id, workdir=workdir, code=code), tuple(notes)


def _check_entrypoint(job: Job, workdir: Path, code: Code) -> None:
    script = job.entrypoint[0]
    name = os.path.normpath(script)
    if (workdir / name).is_file() and not os.path.isabs(name) and name not in code.files.taken:
        raise UsageError(
            f"{script} is in {workdir} but not among the {len(code.files.taken)} files that are sent",
            hint=f"it is ignored, or private to its owner: put !/{name} into {job.ignore}",
            code="entrypoint-not-sent",
        )
