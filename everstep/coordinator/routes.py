"""The routes: parse, call one function, reply.

The two that every worker calls all the time are plain ASGI, without a framework between the bytes and the job."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Request, Response
from starlette.routing import Route

from everstep import wire
from everstep.coordinator.bodies import Receive, Scope, parse, read_body
from everstep.coordinator.job import Job
from everstep.coordinator.service import Service

T = TypeVar("T")
Send = Callable[[dict[str, Any]], Awaitable[None]]

router = APIRouter(prefix="/v1")


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


async def _job(job: str, request: Request) -> Job:
    return await _service(request).job(job)


def _body(kind: type[T]) -> Any:
    async def read(request: Request) -> T:
        return parse(kind, await read_body(request.scope, request.receive))

    return Depends(read)


ServiceOf = Annotated[Service, Depends(_service)]
JobOf = Annotated[Job, Depends(_job)]


def _reply(message: Any = None) -> Response:
    return Response(b"{}" if message is None else wire.to_json(message), media_type="application/json")


# --- people and agents ---


@router.get("/health")
async def health() -> Response:
    return _reply()


@router.put("/jobs/{job}")
async def create(job: str, service: ServiceOf, spec: Annotated[wire.JobSpec, _body(wire.JobSpec)]) -> Response:
    return _reply((await service.create(job, spec)).view())


@router.get("/jobs/{job}")
async def view(job: JobOf) -> Response:
    return _reply(job.view())


@router.get("/jobs/{job}/generations/{number}")
async def generation(job: str, number: int, service: ServiceOf) -> Response:
    return _reply(await service.generation(job, number))


@router.post("/jobs/{job}/stop")
async def stop(job: JobOf, message: Annotated[wire.Stop, _body(wire.Stop)]) -> Response:
    await job.stop(message.reason)
    return _reply()


@router.post("/jobs/{job}/agents/{agent}/report")
async def report(job: JobOf, agent: str, message: Annotated[wire.AgentReport, _body(wire.AgentReport)]) -> Response:
    return _reply(await job.report(agent, message))


@router.post("/jobs/{job}/workers")
async def reserve(job: JobOf, message: Annotated[wire.SlotRequest, _body(wire.SlotRequest)]) -> Response:
    return _reply(await job.reserve(message))


@router.post("/jobs/{job}/workers/{worker}/exited")
async def exited(job: JobOf, worker: str, message: Annotated[wire.WorkerExit, _body(wire.WorkerExit)]) -> Response:
    await job.exited(worker, message)
    return _reply()


# --- workers ---


@router.post("/jobs/{job}/workers/{worker}/announce")
async def announce(job: JobOf, worker: str, message: Annotated[wire.Announce, _body(wire.Announce)]) -> Response:
    return _reply(await job.announce(worker, message))


@router.post("/jobs/{job}/workers/{worker}/broken")
async def broken(job: JobOf, worker: str, message: Annotated[wire.Broken, _body(wire.Broken)]) -> Response:
    await job.broken(worker, message)
    return _reply()


@router.post("/jobs/{job}/workers/{worker}/settled")
async def settled(job: JobOf, worker: str, message: Annotated[wire.Settled, _body(wire.Settled)]) -> Response:
    await job.settled(worker, message)
    return _reply()


@router.post("/jobs/{job}/workers/{worker}/leave")
async def leave(job: JobOf, worker: str, message: Annotated[wire.Leave, _body(wire.Leave)]) -> Response:
    return _reply(await job.leave(worker, message))


class _Hot:
    """One route as plain ASGI: `call` answers with the bytes to send."""

    def __init__(self, kind: type[Any], call: Callable[[Job, str, Any], Awaitable[bytes]]) -> None:
        self._kind, self._call = kind, call

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service: Service = scope["app"].state.service
        path = scope["path_params"]
        job = service.job_at_hand(path["job"]) or await service.job(path["job"])
        message = parse(self._kind, await read_body(scope, receive))
        content = await self._call(job, path["worker"], message)
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(content))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": content})


HOT_ROUTES = [
    Route("/v1/jobs/{job}/workers/{worker}/watch", _Hot(wire.Watch, Job.watch), methods=["POST"]),
    Route("/v1/jobs/{job}/workers/{worker}/arrive", _Hot(wire.Arrive, Job.arrive), methods=["POST"]),
]
