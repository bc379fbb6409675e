"""The routes of people and agents: parse, call one function, reply. Those of workers are in `express`."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Query, Request, Response
from starlette.responses import FileResponse

from everstep import wire
from everstep.coordinator.edge.bodies import MAX_INT, MOST_REPORTS, check_name, parse, read_body
from everstep.coordinator.edge.hot_calls import encode
from everstep.coordinator.edge.openapi import document
from everstep.coordinator.job import CoordinatedJob
from everstep.coordinator.roster.facts import SHA256
from everstep.coordinator.service import Service
from everstep.errors import UNKNOWN, Refused

T = TypeVar("T")

router = APIRouter(prefix="/v1")


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


async def _job(job: str, request: Request) -> CoordinatedJob:
    return await _service(request).job(job)


def _body(kind: type[T]) -> Any:
    async def read(request: Request) -> T:
        return parse(kind, await read_body(request.scope, request.receive))

    return Depends(read)


ServiceOf = Annotated[Service, Depends(_service)]
JobOf = Annotated[CoordinatedJob, Depends(_job)]


def _reply(message: Any = None) -> Response:
    return _reply_json(encode(message))


def _reply_json(content: bytes) -> Response:
    return Response(content, media_type="application/json")


@router.get("/health")
async def health() -> Response:
    return _reply(wire.Health(now=time.time()))


@router.get("/openapi.json")
async def openapi() -> Response:
    return Response(json.dumps(document()), media_type="application/json")


@router.get("/code/{digest}")
async def code(digest: str, request: Request) -> Response:
    folder: Path | None = request.app.state.code
    path = folder / f"code-{digest}.tar.gz" if folder is not None and re.fullmatch(SHA256, digest) else None
    if path is None or not path.is_file():
        raise Refused(f"there is no code {digest[:64]}", status=UNKNOWN)
    return FileResponse(path, media_type="application/gzip")


@router.put("/jobs/{job}")
async def create(job: str, service: ServiceOf, spec: Annotated[wire.JobSpec, _body(wire.JobSpec)]) -> Response:
    return _reply_json((await service.create(job, spec)).view_json())


@router.get("/jobs/{job}")
async def view(job: JobOf, is_brief: bool = False) -> Response:
    return _reply_json(job.view_json(is_brief=is_brief))


@router.get("/jobs/{job}/generations/{number}")
async def generation(job: str, number: int, service: ServiceOf) -> Response:
    return _reply(await service.generation(job, number))


@router.post("/jobs/{job}/stop")
async def stop(job: JobOf, message: Annotated[wire.Stop, _body(wire.Stop)]) -> Response:
    await job.stop(message.reason)
    return _reply()


@router.post("/jobs/{job}/agents/{agent}/leave")
async def leave(job: JobOf, agent: str, message: Annotated[wire.AgentLeave, _body(wire.AgentLeave)]) -> Response:
    await job.agent_leaves(check_name("agent", agent), message)
    return _reply()


@router.post("/jobs/{job}/workers")
async def reserve(job: JobOf, message: Annotated[wire.SlotRequest, _body(wire.SlotRequest)]) -> Response:
    return _reply(await job.reserve(message))


@router.get("/jobs/{job}/datasets")
async def datasets(job: JobOf) -> Response:
    return _reply(await job.shards.views())


@router.put("/jobs/{job}/datasets/{dataset}")
async def register(job: JobOf, dataset: str, spec: Annotated[wire.DatasetSpec, _body(wire.DatasetSpec)]) -> Response:
    return _reply(await job.shards.register(dataset, spec))


@router.get("/jobs/{job}/datasets/{dataset}/checkpoint")
async def checkpoint(job: JobOf, dataset: str) -> Response:
    return _reply(await job.shards.checkpoint(dataset))


@router.post("/jobs/{job}/datasets/{dataset}/restore")
async def restore(
    job: JobOf, dataset: str, message: Annotated[wire.RestoreShards, _body(wire.RestoreShards)]
) -> Response:
    return _reply(await job.shards.restore(dataset, message))


@router.post("/jobs/{job}/metrics")
async def keep_metrics(
    job: str, service: ServiceOf, message: Annotated[wire.MetricReports, _body(wire.MetricReports)]
) -> Response:
    await service.keep_metrics(job, message.reports)
    return _reply()


@router.get("/jobs/{job}/metrics")
async def metrics(
    job: str,
    service: ServiceOf,
    since: Annotated[int, Query(ge=-MOST_REPORTS, le=MAX_INT)] = 0,
    limit: Annotated[int, Query(ge=1, le=MOST_REPORTS)] = 100,
) -> Response:
    return _reply(await service.metrics(job, since, limit))
