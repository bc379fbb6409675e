"""Submitted jobs, for programs: submit one, find it, read its status and logs, scale it, cancel it. Nothing is printed
here: notes are returned.

record = submit(prepare(Path("job.yaml")))
status(record).state                         # "running"
cancel(record)

`prepare` checks the file, packs the code and renders the job; `submit` sends what was rendered. Each job has a small
private file on this machine, found by any of its ids. Values of secrets are read on this machine only, and go only to
private files and the platform's secrets."""

from __future__ import annotations

import json
import logging
import os
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from everstep import env
from everstep.client.calls import Coordinator
from everstep.errors import EverstepError, UsageError
from everstep.job_file.order import num_workers_of, order_of, policy_of
from everstep.jobs.log_filter import by_rank, by_worker
from everstep.jobs.secret_values import private_files, resolve
from everstep.launcher.machine import count_gpus
from everstep.platforms.base import (
    JobRecord,
    JobStatus,
    LogLine,
    Platform,
    Say,
    State,
    SubmitRequest,
    Ticket,
    platform_of,
)
from everstep.record.series_pages import all_series
from everstep.storage import private_file
from everstep.storage.code_archive import LARGE_BYTES, Code, pack
from everstep.waiting import wait_until
from everstep.wire import JobView, SeriesView

if TYPE_CHECKING:  # whatever reads job files is imported to submit one, not to look at a job
    from everstep.job_file.load import Loaded
    from everstep.job_file.schema import Job

log = logging.getLogger("everstep")

_OF_POOLS = ("pool", "priority", "weight", "max_slots", "preemption_timeout")
_LATE_STATUS_S = 5.0  # a platform may report "running" for a moment after the last line


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingStatus:
    """The view of a job's coordinator."""

    view: JobView
    series: tuple[SeriesView, ...]  # of metrics


def _ignore(_line: str) -> None:
    """Notes for people."""


# --- submitting -----------------------------------------------------------------------------------


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
    from everstep.job_file.load import load_file

    return _prepare(load_file(path, _with_platform(changes, platform)), path)


def prepare_text(text: str, changes: Sequence[str] = (), *, platform: str | None = None, name: str) -> Prepared:
    """The same for a file's content; `name`: the file's name in error messages."""
    from everstep.job_file.load import load

    return _prepare(load(text, _with_platform(changes, platform), name=name), None)


def submit(prepared: Prepared, say: Say = _ignore) -> JobRecord:
    """Send it, and store its record. `say` gets the progress, for people."""
    job, platform, ticket = prepared.job, prepared.platform, prepared.request.ticket
    if prepared.missing and not job.setup and (platform.name == "local" or not job.image):
        hint = "name a script in that folder, or see `workdir`; nothing else could provide it"
        raise UsageError(prepared.missing, hint=hint, code="entrypoint-missing")
    if platform.name == "local":
        check_gpus(job, count_gpus(), say)
    if (problem := platform.detect()) is not None:
        raise UsageError(f"{platform.name} cannot be used from here: {problem}", code="platform-unusable")
    check_records()
    values = resolve(job.secrets)
    try:
        submitted = platform.submit(prepared.request, values, say)
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
    save(record)
    return record


def check_gpus(job: Job, num_gpus: int, say: Say) -> None:
    """`num_gpus`: those of this machine, which all nodes share. Without any GPU, the same file trains on CPUs."""
    each, nodes = job.resources.gpu, job.nodes.max
    if each and not num_gpus:
        say(f"resources.gpu: {each}: this machine has no GPU, so the workers train on its CPUs")
    elif each * nodes > num_gpus:
        asked = f"{nodes} nodes with {each} GPUs each need {each * nodes}" if nodes > 1 else f"resources.gpu: {each}"
        raise UsageError(
            f"{asked}, but this machine has {num_gpus}",
            hint="ask for fewer (resources.gpu, nodes), or train on the CPU: --set resources.gpu=0",
            code="local-gpus-missing",
        )


def _with_platform(changes: Sequence[str], platform: str | None) -> Sequence[str]:
    if platform is None:
        return changes
    from everstep.job_file.platform_options import check_platform

    check_platform(platform)
    return [*changes, f"platform.name={platform}"]


def _prepare(loaded: Loaded, job_file: Path | None) -> Prepared:
    job = loaded.job
    refuse_search(job)
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
        notes=(*loaded.notes, *request.notes, *_gpu_notes(job), *_pool_notes(job), *notes),
        missing=missing,
    )


def _gpu_notes(job: Job) -> Iterator[str]:
    workers, gpus = num_workers_of(job), job.resources.gpu
    if gpus and isinstance(workers, int) and workers > gpus:
        then = "backend: nccl will fail" if job.backend == "nccl" else "gradients travel over gloo"
        yield f"{workers} workers per node, but resources.gpu: {gpus}: NCCL needs a GPU for each worker, so {then}"
    elif gpus and isinstance(workers, int) and workers < gpus:
        yield f"workers_per_node: {workers}, but resources.gpu: {gpus}: each worker uses one GPU, so the rest stay idle"


def _pool_notes(job: Job) -> Iterator[str]:
    for name in _OF_POOLS:
        if name in job.resources.model_fields_set:
            yield f"resources.{name} is not used: the job runs without a pool"


def _missing_script(job: Job, workdir: Path) -> str:
    entry = job.entry
    if entry.is_module or entry.is_program or (workdir / entry.script).exists():
        return ""
    return f"entrypoint: there is no {entry.script} in {workdir}"


def refuse_search(job: Job) -> None:
    if job.searcher is not None and job.searcher.name != "single":
        raise UsageError(
            f"searcher.name: {job.searcher.name}: this file is an experiment of many trials, and not one job",
            hint="`everstep e create FILE .` runs it; --set searcher.name=single trains one trial",
            code="searcher-needs-experiment",
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


# --- records --------------------------------------------------------------------------------------


def _folder() -> Path:
    return env.home() / "submitted"  # `jobs` holds the checkpoints' index


def check_records() -> None:
    """Before anything is submitted: a job without a record could not be canceled."""
    folder = _folder()
    try:
        private_file.write(folder / ".ready", b"")
    except OSError as error:
        raise UsageError(
            f"cannot write job records to {folder}: {error.strerror}",
            hint=f"set {env.HOME} to a folder that you can write to",
            code="job-records-not-writable",
        ) from None


def save(record: JobRecord) -> None:
    private_file.write_json(_folder() / f"{record.id}.json", asdict(record))


def load_all() -> list[JobRecord]:
    """Newest first. A damaged record is logged and skipped."""
    found = [record for path in _folder().glob("*.json") if (record := _load(path)) is not None]
    return sorted(found, key=lambda record: record.created_at, reverse=True)


def find(wanted: str) -> JobRecord:
    """By our id or a prefix of it, by one of the platform's ids, or by name. Prefers a job that is not known to be
    over; of several with that name, the newest."""
    records = load_all()
    exact = [record for record in records if wanted in record.ids]
    found = exact or [record for record in records if record.id.startswith(wanted) or record.name == wanted]
    going = [record for record in found if record.end is None]
    named = [record for record in going or found if record.name == wanted]
    if len(found) == 1 or exact or len(going) == 1 or named:
        return (exact or named or going or found)[0]
    if found:
        shown = ", ".join(record.id for record in found[:5])
        message = f"{wanted} matches {len(found)} jobs: {shown}"
        raise UsageError(message, hint="give more characters of the id", code="job-id-ambiguous")
    message = f"no job {wanted} was submitted by you on this machine"
    raise UsageError(message, hint="`everstep list` shows your jobs", code="job-record-missing")


def _load(path: Path) -> JobRecord | None:
    try:
        told = json.loads(path.read_text())
        runs = tuple((name, native) for name, native in told["runs"])
        return JobRecord(**{**told, "runs": runs, "end": tuple(told["end"]) if told.get("end") else None})
    except (ValueError, TypeError, KeyError) as error:
        log.warning("%s is not a job record (%s); skipped. Remove the file", path, error)
        return None


def find_printed(file: Path) -> JobRecord:
    """The job whose output of `everstep run -f` is in `file`."""
    import yaml

    try:
        printed = yaml.safe_load(file.read_text())
        return find(str(printed["everstep"]["id"] if "everstep" in printed else printed["jobId"]))
    except (OSError, yaml.YAMLError, KeyError, TypeError) as error:
        message = f"{file} is not the output of `everstep run -f`: {error}"
        raise UsageError(message, hint="save it with … | tee info.yaml", code="run-output-unreadable") from None


# --- what was submitted ---------------------------------------------------------------------------


def list_all() -> list[tuple[JobRecord, JobStatus]]:
    """Newest first. A platform that is unreachable does not hide the other jobs."""
    return [(record, _status_if_known(record)) for record in load_all()]


def status(record: JobRecord) -> JobStatus:
    """A final state is stored: the platform may forget it."""
    if record.end is not None:
        state, reason = record.end
        return JobStatus(state=cast(State, state), reason=reason)
    status = platform_of(record.platform).status(record)
    if status.is_over:
        save(replace(record, end=(status.state, status.reason)))
    return status


def end_of(record: JobRecord) -> JobStatus:
    """After its last line: how it ended, if the platform knows it already."""
    wait_until(lambda: status(record).is_over, _LATE_STATUS_S, "the platform to report the end", pause_s=0.2)
    return status(record)


def logs(record: JobRecord, *, follow: bool = False) -> Iterator[LogLine]:
    return platform_of(record.platform).logs(record, follow=follow)


def worker_lines(record: JobRecord, *, rank: int | None, worker: str | None, follow: bool = False) -> Iterator[str]:
    """The lines of one worker, by its name or by its rank at the time."""
    if rank is not None and worker is not None:
        raise UsageError("--rank and --worker at once", hint="give one of them", code="rank-and-worker")
    texts = (line.text for line in logs(record, follow=follow))
    if worker is not None:
        return iter(by_worker(texts, worker))
    return iter(by_rank(texts, rank, _ranks(record), follow))


def training(record: JobRecord) -> TrainingStatus | None:
    """None: its coordinator cannot be reached from here."""
    with coordinator_of(record) as coordinator:
        if coordinator is None:
            return None
        return TrainingStatus(view=coordinator.view(), series=tuple(all_series(coordinator, is_own=True)))


def scale(record: JobRecord, num_nodes: int, say: Say = _ignore) -> None:
    """`say` gets notes for people."""
    if not record.min_nodes <= num_nodes <= record.max_nodes:
        message = f"{num_nodes} nodes: the job takes {record.min_nodes} to {record.max_nodes}"
        raise UsageError(message, hint="`nodes: MIN:MAX` in the job file sets the range", code="nodes-out-of-range")
    if (found := status(record)).is_over:
        raise UsageError(f"{record.id} is over: {found.state}, {found.reason}", code="submitted-job-over")
    platform_of(record.platform).scale(record, num_nodes, say)


def cancel(record: JobRecord, say: Say = _ignore) -> JobStatus:
    """Returns when no part of it runs any more."""
    platform_of(record.platform).cancel(record, say)
    return status(record)


def ids_of(record: JobRecord) -> dict[str, Any]:
    """The output of `run`: ADS's names first."""
    main, *others = record.runs or ((record.name, record.job_id),)
    return {
        "jobId": record.job_id,
        "workDir": record.work_dir,
        "mainJobRunId": {main[0]: main[1]},
        "otherJobRunIds": [{name: native} for name, native in others],
        "everstep": {"id": record.id, "platform": record.platform, "folder": record.folder},
    }


def config_of(record: JobRecord) -> dict[str, Any]:
    """Its ids, where its coordinator is, and its job file."""
    return {**ids_of(record), "runtime": _runtime_of(record), "job": dict(record.job)}


def _runtime_of(record: JobRecord) -> dict[str, Any]:
    """The main node and its address, by ADS's names."""
    main = (record.runs or ((record.name, record.job_id),))[0][0]
    try:
        with platform_of(record.platform).coordinator(record) as found:
            url = urlsplit(found[0]) if found is not None else None
    except EverstepError as error:
        return {"main": main, "coordinator": f"not found: {error.message}"}
    if url is None:
        return {"main": main, "coordinator": "not running, or not reachable from here"}
    return {"main": main, "coordinator": url.geturl(), "MASTER_ADDR": url.hostname, "MASTER_PORT": url.port}


def _status_if_known(record: JobRecord) -> JobStatus:
    try:
        return status(record)
    except (EverstepError, ImportError, OSError, ValueError) as error:  # ValueError: a record of another version
        return JobStatus(state="unknown", reason=str(error).splitlines()[0])


def _ranks(record: JobRecord) -> Mapping[str, int]:
    """By worker, as long as the coordinator answers."""
    try:
        with coordinator_of(record) as coordinator:
            workers = coordinator.view().workers if coordinator is not None else []
            return {each.worker: each.rank for each in workers if each.rank >= 0}
    except EverstepError:
        return {}


@contextmanager
def coordinator_of(record: JobRecord) -> Iterator[Coordinator | None]:
    """None: it cannot be reached from here."""
    with platform_of(record.platform).coordinator(record) as found:
        if found is None:
            yield None
        else:
            with Coordinator(*found, record.id) as coordinator:
                yield coordinator
