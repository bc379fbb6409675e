"""What answers an operation: the function of the same name here, with the same parameters, else the method of the job
that the path names (`CoordinatedJob`). Call one function, reply.

A reply is a message, JSON as bytes, or a response of Starlette's."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.responses import FileResponse, PlainTextResponse

from everstep import wire
from everstep.coordinator.edge.code_folder import code_path
from everstep.coordinator.edge.connection import WHEN_LOST
from everstep.coordinator.edge.guard import TOKEN, Scope
from everstep.coordinator.edge.openapi import document
from everstep.coordinator.experiments.owners import check_may_change
from everstep.coordinator.experiments.trial_calls import trial_key
from everstep.coordinator.job import CoordinatedJob
from everstep.coordinator.prometheus_text import CONTENT_TYPE
from everstep.coordinator.prometheus_view import prometheus_text
from everstep.coordinator.service import Service
from everstep.errors import UNKNOWN, Refused
from everstep.page.sessions import CODE_S, Sessions
from everstep.wire.bounds import MAX_INT
from everstep.wire.metrics import MOST_SERIES
from everstep.wire.page_bounds import MOST_COMPARED


@dataclass(slots=True)
class HttpCall:
    """One request, as its handler sees it."""

    service: Service
    sessions: Sessions
    code: Path | None
    job_name: str
    job: CoordinatedJob  # that the path names; read only by handlers of operations whose job exists
    scope: Scope


async def check(_call: HttpCall) -> wire.Health:
    return wire.Health(now=time.time())


async def openapi(_call: HttpCall) -> dict[str, Any]:
    return document()


async def prometheus(call: HttpCall) -> PlainTextResponse:
    return PlainTextResponse(prometheus_text(call.service), media_type=CONTENT_TYPE)


async def code(call: HttpCall, digest: str) -> FileResponse:
    path = code_path(call.code, digest)
    if path is None or not path.is_file():
        raise Refused(f"there is no code {digest[:64]}", status=UNKNOWN, code="code-unknown")
    return FileResponse(path, media_type="application/gzip")


async def page_code(call: HttpCall, message: wire.PageCodeRequest) -> wire.PageCode:
    return wire.PageCode(code=call.sessions.new_code(call.scope[TOKEN], message.role, time.time()), expires_s=CODE_S)


async def jobs(
    call: HttpCall,
    start: int = 0,
    limit: int = 100,
    sort: str = "created_at",
    is_descending: bool = True,
    search: str = "",
    state: str = "",
) -> wire.JobList:
    states = [each for each in state.split(",") if each]
    return await call.service.listing.find(
        start, limit, sort, is_descending=is_descending, search=search, states=states
    )


async def compare(call: HttpCall, jobs: str = "") -> wire.JobComparison:
    names = [each for each in jobs.split(",") if each]
    if len(names) > MOST_COMPARED:
        text = f"cannot compare {len(names)} jobs; the limit is {MOST_COMPARED}"
        raise Refused(text, status=422, code="parameter-invalid")
    return await call.service.compare(names)


async def about(call: HttpCall) -> wire.JobAbout:
    return await call.service.listing.about(call.job)


async def band(call: HttpCall, after: int = 0, limit: int = 1000) -> wire.Band:
    return await call.service.listing.band(call.job_name, after, limit)


async def _check_may_change(call: HttpCall) -> None:
    """A trial's job belongs to its experiment. The pool makes it; made earlier, it would have another policy."""
    if (key := trial_key(call.job_name)) is not None:
        check_may_change(await call.service.experiments.facts(key[0]), call.scope[TOKEN])


async def create_job(call: HttpCall, spec: wire.JobSpec) -> bytes:
    await _check_may_change(call)
    return (await call.service.create(call.job_name, spec)).view_json()


async def view(call: HttpCall, *, is_brief: bool = False) -> bytes:
    return call.job.view_json(is_brief=is_brief)


async def stop(call: HttpCall, message: wire.Stop) -> None:
    await _check_may_change(call)
    await call.job.stop(message.reason)


async def generation(call: HttpCall, number: int) -> wire.GenerationView:
    return await call.service.generation(call.job_name, number)


async def report(call: HttpCall, agent: str, message: wire.AgentReport) -> bytes:
    """While an agent waits for orders, its end is seen at once: the kernel closes its connection."""
    is_answered = False
    if WHEN_LOST in call.scope:
        call.scope[WHEN_LOST](lambda: call.job.may_be_gone(agent, message, is_cut=not is_answered))
    try:
        return await call.job.report(agent, message)
    finally:
        is_answered = True


async def report_and_lease(call: HttpCall, worker: str, message: wire.LeaseRequest) -> bytes:
    return await call.job.shards.lease(worker, message)


async def datasets(call: HttpCall) -> wire.Datasets:
    return await call.job.shards.views()


async def register_dataset(call: HttpCall, dataset: str, spec: wire.DatasetSpec) -> wire.DatasetView:
    return await call.job.shards.register(dataset, spec)


async def shard_checkpoint(call: HttpCall, dataset: str) -> wire.ShardCheckpoint:
    return await call.job.shards.checkpoint(dataset)


async def restore_shards(call: HttpCall, dataset: str, message: wire.RestoreShards) -> wire.DatasetView:
    return await call.job.shards.restore(dataset, message)


async def report_metrics(call: HttpCall, worker: str, message: wire.MetricReports) -> wire.MetricsKept:
    return await call.service.metrics.report(call.job.roster, worker, message.reports)


async def report_node_metrics(call: HttpCall, agent: str, message: wire.MetricReports) -> wire.MetricsKept:
    return await call.service.metrics.report_node(call.job.roster, agent, message.reports)


async def series(call: HttpCall, after: int = 0, limit: int = MOST_SERIES, *, is_own: bool = False) -> bytes:
    return await call.service.metrics.series(call.job_name, after, limit, is_own=is_own)


async def series_window(
    call: HttpCall, series: int, *, start: int = 0, stop: int = MAX_INT, columns: int = 1000, is_full: bool = False
) -> bytes:
    return await call.service.metrics.window(call.job_name, series, start, stop, columns, is_full=is_full)


async def reports(call: HttpCall, since: int = 0, limit: int = 100) -> wire.ReportsView:
    return await call.service.metrics.reports(call.job_name, since, limit)


async def send_logs(call: HttpCall, agent: str, message: wire.LogChunks) -> wire.LogsKept:
    return await call.service.logs.keep(call.job, agent, message)


async def logs(call: HttpCall, request: wire.LogsRequest) -> bytes:
    return await call.service.logs.read(call.job_name, request)
