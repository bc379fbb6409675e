"""Data Science jobs of Oracle Cloud Infrastructure: one Job, and a job run for each node (or one for all of them).

Submits what ADS submits, so that its images accept it; our images find the order of the job beside it. Nothing here
needs the SDK before something is sent. A submitted job is found again by its OCIDs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from pydantic import TypeAdapter

from everstep.errors import EverstepError, PermanentError, UsageError
from everstep.job_file.order import order_of
from everstep.job_file.platform_options import Oci
from everstep.job_file.schema import Job
from everstep.job_file.tree import dump
from everstep.platforms.base import JobRecord, JobStatus, LogLine, Say, SubmitRequest, Submitted, Ticket, refuse_foreign
from everstep.platforms.oci import access, payload, search
from everstep.platforms.oci.runs import OciRun, RunNames, decide_end, decide_scale, decide_status
from everstep.platforms.oci.service import Jobs, Logs, cidr_of
from everstep.platforms.raw_overlay import lay_over
from everstep.storage.shared_folder import SharedFolder, below
from everstep.waiting import wait_until

_JOB_ID, _NETWORK = "<the job's OCID>", "<the subnet's CIDR>"  # known on submission
_END_S = 120.0  # beyond the grace, for the service to end a canceled run
_PAUSE_S = 1.0
_MEETING_FILES = ("MAIN_config.json", "everstep.token")
_SECRETS_FILE = "secrets.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class OciPlace:
    """What a record holds: enough to find the job, inspect it, and add runs. No secrets."""

    options: Oci
    names: RunNames
    folder: str  # with what we have sent
    files: tuple[str, ...]  # in it
    grace_s: float

    def open(self) -> access.Access:
        return access.open_access(self.options.auth, self.options.profile, self.options.endpoint)

    def runs(self, jobs: Jobs, job_id: str) -> list[OciRun]:
        return jobs.runs(self.options.compartment, job_id, self.names)


_PLACE = TypeAdapter(OciPlace)


def _recall(record: JobRecord) -> OciPlace:
    return _PLACE.validate_python(record.natives)


class OciPlatform:
    name = "oci"
    ships_code = True

    def detect(self) -> str | None:
        return None if access.is_installed() else access.MISSING

    def render(self, job: Job, ticket: Ticket) -> SubmitRequest:
        refuse_foreign(job.secrets, platform=self.name, kinds=("oci",))
        options = _options(job)
        place = _place(job, options, ticket)
        body = _job_body(job, options, ticket, place)
        num_runs = 1 if options.mode == "multinode" else job.nodes.max
        runs = [payload.run_body(place.names.of(rank), rank, options, _JOB_ID) for rank in range(num_runs)]
        shown = {"job": body, "jobRuns": runs, "workDir": {"folder": place.folder, "files": list(place.files)}}
        return SubmitRequest(
            job=job, ticket=ticket, text=dump(shown), objects=(body, *runs), notes=tuple(_notes(job, options, place))
        )

    def submit(self, request: SubmitRequest, secrets: Mapping[str, str], say: Say) -> Submitted:
        options = _options(request.job)
        place = _place(request.job, options, request.ticket)
        opened = place.open()
        jobs, folder = Jobs.open(opened), _folder(place.folder, opened)
        body, *run_bodies = request.objects
        runs: list[tuple[str, str]] = []
        with _undone_on_failure(say) as undo:
            job_id = jobs.create(_with_network(body, lambda: _network(opened, options, say)))
            undo(lambda: _end(jobs, place, job_id, say, deletes=True))
            undo(lambda: folder.remove(place.files))
            for name, data in _files(request.ticket, secrets):
                folder.write(name, data)
            for each in run_bodies:
                runs.append((each["displayName"], jobs.start({**each, "jobId": job_id})))
        say(f"{len(runs)} job runs of {job_id} are accepted")
        natives = _PLACE.dump_python(place, mode="json")
        return Submitted(job_id=job_id, runs=tuple(runs), work_dir=options.work_dir, natives=natives)

    def status(self, record: JobRecord) -> JobStatus:
        place = _recall(record)
        return decide_status(place.runs(Jobs.open(place.open()), record.job_id))

    def logs(self, record: JobRecord, *, follow: bool) -> Iterator[LogLine]:
        place = _recall(record)
        if not place.options.log_group:
            hint = "platform.oci.log_group and log say where it is kept"
            raise UsageError(f"{record.id} has no log at OCI", hint=hint, code="oci-log-missing")
        opened, options = place.open(), place.options
        jobs, logs = Jobs.open(opened), Logs.open(opened)

        def look() -> search.FollowedRuns:
            runs = place.runs(jobs, record.job_id)
            return search.FollowedRuns(
                names={run.id: run.name for run in runs},
                is_over=decide_status(runs).is_over,
                nodes_per_run=record.max_nodes if options.mode == "multinode" else 1,
            )

        # Without a log, the service makes one for each run: then search the whole group.
        where = "/".join(filter(None, (options.compartment, options.log_group, options.log)))
        return search.follow(logs.search, where, look, since=record.created_at, follows=follow)

    def scale(self, record: JobRecord, num_nodes: int, say: Say) -> None:
        place = _recall(record)
        if place.options.mode == "multinode":
            message = "mode: multinode has a fixed number of nodes"
            raise UsageError(message, hint="platform.oci.mode: runs", code="oci-multinode-cannot-scale")
        jobs = Jobs.open(place.open())
        orders = decide_scale(place.runs(jobs, record.job_id), num_nodes)
        say(orders.reason)
        for rank in orders.add:
            jobs.start(payload.run_body(place.names.of(rank), rank, place.options, record.job_id))
        for run in orders.cancel:
            jobs.cancel(run)

    def cancel(self, record: JobRecord, say: Say) -> None:
        """The Job and its runs stay with the service as a record; the files sent for them are removed."""
        place = _recall(record)
        opened = place.open()
        _end(Jobs.open(opened), place, record.job_id, say, deletes=False)
        _folder(place.folder, opened).remove(place.files)
        _folder(below(record.work_dir, record.job_id), opened).remove(_MEETING_FILES)

    @contextmanager
    def coordinator(self, record: JobRecord) -> Iterator[tuple[str, str] | None]:
        """Only where the nodes' network can be reached from here."""
        yield _met(record)

    def record_folder(self, record: JobRecord) -> SharedFolder:
        return _folder(record.work_dir, _recall(record).open())


# --- what is sent ---------------------------------------------------------------------------------


def _options(job: Job) -> Oci:
    options = job.platform.oci or Oci()
    needed = {
        "image": (job.image, "one with Everstep in it: `everstep build` makes it"),
        "platform.oci.compartment": (options.compartment, "OCID of the compartment"),
        "platform.oci.project": (options.project, "OCID of the Data Science project"),
        "platform.oci.shape": (options.shape, "such as VM.GPU2.1"),
        "platform.oci.work_dir": (options.work_dir, "a folder that all nodes reach: oci://bucket@namespace/path"),
    }
    for name, (given, hint) in needed.items():
        if not given:
            raise UsageError(f"{name} is missing; OCI needs it", hint=hint, code="oci-option-missing")
    num_gpus = payload.gpus_of_shape(options.shape)
    if num_gpus is not None and job.resources.gpu > num_gpus:
        raise UsageError(
            f"resources.gpu: {job.resources.gpu}, but shape {options.shape} has {num_gpus}",
            hint="choose a larger platform.oci.shape, such as VM.GPU.A10.2, or ask for fewer GPUs on more nodes",
            code="oci-shape-has-fewer-gpus",
        )
    return options


def _place(job: Job, options: Oci, ticket: Ticket) -> OciPlace:
    code = (ticket.code.file_name,) if ticket.code is not None else ()
    files = (*code, *((_SECRETS_FILE,) if _has_values(job) else ()))
    main, worker = options.main_name or f"{job.title}-main", options.worker_name or f"{job.title}-worker"
    return OciPlace(
        options=options,
        names=RunNames(main=main, worker=worker),
        folder=below(options.work_dir, ticket.id),
        files=files,
        grace_s=job.checkpoint.grace,
    )


def _has_values(job: Job) -> bool:
    return any(secret.kind != "oci" for secret in job.secrets.values())


def _is_met_by_address(job: Job, options: Oci) -> bool:
    """A run in your subnet is also in one of the service's, where other runs cannot reach it."""
    return bool(options.subnet) and options.mode == "runs" and job.nodes.max > 1


def _network(opened: access.Access, options: Oci, say: Say) -> str:
    try:
        return cidr_of(opened, options.subnet)
    except EverstepError as error:
        say(f"{error.message}: nodes use the address of their default route")
        return ""


def _job_body(job: Job, options: Oci, ticket: Ticket, place: OciPlace) -> dict[str, Any]:
    network = _NETWORK if _is_met_by_address(job, options) else ""
    code = "" if ticket.code is None else ticket.code.sha256
    order = order_of(job, ticket.id, code=code, code_from=place.folder if code else "")
    order = replace(order, record_to=order.record_to if "://" in order.record_to else options.work_dir)
    secrets = below(place.folder, _SECRETS_FILE) if _SECRETS_FILE in place.files else ""
    told = payload.job_environment(job, options, order, secrets=secrets, network=network)
    body: dict[str, Any] = lay_over(payload.job_body(job, options, told), options.raw)
    return body


def _with_network(body: Any, find: Callable[[], str]) -> Any:
    """The body with the subnet's CIDR in the place that was kept for it."""
    text = json.dumps(body)
    return json.loads(text.replace(_NETWORK, find())) if _NETWORK in text else body


def _files(ticket: Ticket, secrets: Mapping[str, str]) -> Iterator[tuple[str, bytes]]:
    if ticket.code is not None:
        yield ticket.code.file_name, ticket.code.data
    if secrets:
        yield _SECRETS_FILE, json.dumps(dict(secrets)).encode()


def _notes(job: Job, options: Oci, place: OciPlace) -> Iterator[str]:
    values = [name for name, secret in job.secrets.items() if secret.kind != "oci"]
    if values:
        yield (
            f"secrets {', '.join(values)}: go to {below(place.folder, _SECRETS_FILE)}, not into the job's definition; "
            "anyone who can read that bucket can read them until the job is over"
        )
    if vault := payload.vault_secrets(job):
        yield f"secrets {', '.join(vault)}: each node reads them from the vault, as its own job run"
    if not options.log_group:
        yield "platform.oci.log_group is not set: `everstep logs` and `watch` have nothing to show"
    if not options.subnet:
        yield "platform.oci.subnet is not set: nodes use the service's own network"
    if job.resources.cpu or job.resources.memory or job.resources.shm:
        yield f"resources: shape {options.shape} decides what a node has; of a flexible one, ocpus and memory_gb do"
    num_gpus = payload.gpus_of_shape(options.shape) or 0
    if 0 < job.resources.gpu < num_gpus:
        yield f"resources.gpu: {job.resources.gpu}, but shape {options.shape} has {num_gpus} GPUs: the rest stay idle"
    if any(volume.kind == "emptydir" for volume in job.volumes):
        yield "volumes: emptydir: not needed; each node has its own disk"
    if options.mode == "runs" and job.nodes.max > 1:
        yield f"{place.names.main} hosts the coordinator; the service does not replace it if it is lost"


def _folder(uri: str, opened: access.Access) -> SharedFolder:
    return SharedFolder(uri=uri, options=opened.storage_options if uri.startswith("oci://") else {})


@contextmanager
def _undone_on_failure(say: Say) -> Iterator[Callable[[Callable[[], None]], None]]:
    """On failure, undo the steps that were done."""
    steps: list[Callable[[], None]] = []
    try:
        yield steps.append
    except BaseException:
        for step in reversed(steps):
            try:
                step()
            except EverstepError as error:
                say(f"could not undo: {error.message}")
        raise


# --- what was sent --------------------------------------------------------------------------------


def _end(jobs: Jobs, place: OciPlace, job_id: str, say: Say, *, deletes: bool) -> None:
    """Cancel all runs, and wait until none is left."""
    began, asked, said = time.monotonic(), set[str](), ""

    def is_over() -> bool:
        nonlocal said
        orders = decide_end(
            place.runs(jobs, job_id),
            asked=asked,
            waited_s=time.monotonic() - began,
            patience_s=place.grace_s + _END_S,
        )
        if orders.is_done:
            return True
        if orders.is_hopeless:
            hint = "`everstep cancel` again later; Oracle's support can end a run"
            raise PermanentError(orders.reason, hint=hint, code="oci-run-not-ended")
        for run in orders.cancel:
            jobs.cancel(run)
            asked.add(run.id)
        if orders.reason != said:
            said = orders.reason
            say(said)
        return False

    wait_until(is_over, place.grace_s + 2 * _END_S, "all runs to end", pause_s=_PAUSE_S)
    if deletes:
        jobs.delete(job_id)
        say(f"deleted the job {job_id}")


def _met(record: JobRecord) -> tuple[str, str] | None:
    import socket
    from urllib.parse import urlsplit

    place = _recall(record)
    try:
        folder = _folder(below(record.work_dir, record.job_id), place.open())
        config, token = (folder.read(name) for name in _MEETING_FILES)
        if config is None or token is None:
            return None
        url = str(json.loads(config)["coordinator"])
        parts = urlsplit(url)
        socket.create_connection((parts.hostname or "", parts.port or 80), timeout=2.0).close()
        return url, token.decode().strip()
    except (EverstepError, OSError, ValueError, KeyError):
        return None
