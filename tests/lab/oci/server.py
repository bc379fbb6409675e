"""An emulated OCI: as much of Data Science, Logging Search, Vault and Object Storage as Everstep calls, on loopback.

A program of its own: `python server.py SETTINGS.json`. Every request must be signed by a key that it knows. Each job
run is a real process with the environment that the service gives it. What tests change (faults, delays) goes to
/emulator."""

from __future__ import annotations

import base64
import json
import re
import signal
import socket
import sys
import threading
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from email.utils import formatdate
from pathlib import Path
from typing import Any

import uvicorn
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from fastapi import FastAPI, Request, Response

sys.path.insert(0, str(Path(__file__).parents[2]))
from lab.oci import signatures
from lab.oci.service_runs import Image, JobRun, LogStore, Settings, new_ocid, now_text

PAGE = 2  # small, so that a client that forgets the second page fails


@dataclass(slots=True)
class Fault:
    """Answer with an error instead, this many times; `is_late`: after doing what was requested."""

    method: str
    path: str  # a pattern
    status: int
    code: str = "InternalError"
    times: int = 1
    retry_after_s: float | None = None
    is_late: bool = False


@dataclass(slots=True)
class Oci:
    folder: Path
    image: Image
    keys: signatures.KeyRing
    settings: Settings = field(default_factory=Settings)
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    runs: dict[str, JobRun] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)  # by namespace/bucket/name
    faults: list[Fault] = field(default_factory=list)
    answered: dict[str, Any] = field(default_factory=dict)  # by opc-retry-token
    calls: list[str] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock)
    logs: LogStore = field(init=False)

    def __post_init__(self) -> None:
        self.logs = LogStore(self.settings)

    def take_fault(self, method: str, path: str, *, is_late: bool) -> Fault | None:
        with self.lock:
            for fault in self.faults:
                if (fault.method, fault.is_late) == (method, is_late) and fault.times and re.search(fault.path, path):
                    fault.times -= 1
                    return fault
        return None


def refusal(status: int, code: str, message: str, **headers: str) -> Response:
    return Response(
        json.dumps({"code": code, "message": message}),
        status_code=status,
        media_type="application/json",
        headers={"opc-request-id": uuid.uuid4().hex, **headers},
    )


def not_found(what: str) -> Response:
    return refusal(404, "NotAuthorizedOrNotFound", f"Authorization failed or requested resource not found: {what}")


def make_app(oci: Oci) -> FastAPI:
    app = FastAPI()

    @app.middleware("http")
    async def guard(request: Request, call: Callable[[Request], Awaitable[Response]]) -> Response:
        if request.url.path.startswith("/emulator"):
            return await call(request)
        body = await request.body()
        target = request.scope["raw_path"].decode()
        if request.scope["query_string"]:
            target += "?" + request.scope["query_string"].decode()
        oci.calls.append(f"{request.method} {request.url.path}")
        try:
            signed = signatures.Request(request.method, target, request.headers, body)
            request.state.signer = oci.keys.signer_of(signed)
        except signatures.Unsigned as error:
            return refusal(
                401, "NotAuthenticated", f"The required information was not provided or was incorrect: {error}"
            )
        for is_late in (False, True):
            if is_late:
                answer = await call(request)
            fault = oci.take_fault(request.method, request.url.path, is_late=is_late)
            if fault is not None:
                pause = {} if fault.retry_after_s is None else {"retry-after": str(fault.retry_after_s)}
                return refusal(fault.status, fault.code, "a fault that was asked for", **pause)
        answer.headers["opc-request-id"] = uuid.uuid4().hex
        return answer

    add_jobs(app, oci)
    add_runs(app, oci)
    add_others(app, oci)
    add_objects(app, oci)
    add_controls(app, oci)
    return app


def once(oci: Oci, request: Request, make: Callable[[], Any]) -> Any:
    """What was asked for before, with the same token, is not made again."""
    token = request.headers.get("opc-retry-token")
    with oci.lock:
        if token is None:
            return make()
        if token not in oci.answered:
            oci.answered[token] = make()
        return oci.answered[token]


def add_jobs(app: FastAPI, oci: Oci) -> None:
    @app.post("/20190101/jobs")
    def create(request: Request, body: dict[str, Any]) -> Any:
        if missing := [key for key in ("projectId", "compartmentId") if not body.get(key)]:
            return refusal(400, "InvalidParameter", f"{missing[0]} must not be null")

        def make() -> dict[str, Any]:
            job = {**body, "id": new_ocid("datasciencejob"), "lifecycleState": "ACTIVE", "timeCreated": now_text()}
            oci.jobs[job["id"]] = job
            return job

        return once(oci, request, make)

    @app.get("/20190101/jobs/{job_id}")
    def get(job_id: str) -> Any:
        return oci.jobs.get(job_id) or not_found(job_id)

    @app.delete("/20190101/jobs/{job_id}")
    def delete(job_id: str, deleteRelatedJobRuns: bool = False) -> Any:  # noqa: N803
        if job_id not in oci.jobs:
            return not_found(job_id)
        related = [run for run in oci.runs.values() if run.body["jobId"] == job_id]
        if any(run.state in ("ACCEPTED", "IN_PROGRESS", "CANCELING") for run in related):
            return refusal(409, "IncorrectState", "the job has runs that are not over")
        if related and not deleteRelatedJobRuns:
            return refusal(409, "IncorrectState", "the job has runs")
        for run in related:
            del oci.runs[run.id]
        del oci.jobs[job_id]
        return Response(status_code=204)


def add_runs(app: FastAPI, oci: Oci) -> None:
    @app.post("/20190101/jobRuns")
    def create(request: Request, body: dict[str, Any]) -> Any:
        job = oci.jobs.get(body.get("jobId", ""))
        if job is None:
            return not_found("the job")

        def make() -> dict[str, Any]:
            run = JobRun(job, body, folder=oci.folder, image=oci.image, logs=oci.logs)
            oci.keys.keys[f"ST${run.token}"] = run.public_key
            oci.runs[run.id] = run
            return run.view()

        return once(oci, request, make)

    @app.get("/20190101/jobRuns")
    def list_runs(response: Response, compartmentId: str, jobId: str = "", page: int = 0) -> Any:  # noqa: N803
        found = [run.view() for run in oci.runs.values() if jobId in ("", run.body["jobId"])]
        found = [view for view in found if view["compartmentId"] == compartmentId]
        if page + PAGE < len(found):
            response.headers["opc-next-page"] = str(page + PAGE)
        return found[page : page + PAGE]

    @app.get("/20190101/jobRuns/{run_id}")
    def get(run_id: str) -> Any:
        return oci.runs[run_id].view() if run_id in oci.runs else not_found(run_id)

    @app.post("/20190101/jobRuns/{run_id}/actions/cancelJobRun")
    def cancel(run_id: str) -> Any:
        if run_id not in oci.runs:
            return not_found(run_id)
        if not oci.runs[run_id].cancel():
            return refusal(409, "IncorrectState", f"the run is {oci.runs[run_id].state}")
        return Response(status_code=204)


def add_others(app: FastAPI, oci: Oci) -> None:
    @app.post("/20190909/search")
    def search(body: dict[str, Any], limit: int = 500) -> Any:
        query = body["searchQuery"]
        place = re.match(r'search "([^"]+)"', query)
        endings = re.findall(r"source = '\*([^']+)'", query)
        if place is None or not query.endswith("| sort by datetime asc"):
            return refusal(400, "InvalidParameter", f"no such query: {query}")
        start, end = (datetime.fromisoformat(body[key].replace("Z", "+00:00")) for key in ("timeStart", "timeEnd"))
        if (end - start).days > 14:
            return refusal(400, "InvalidParameter", "more than 14 days")
        found = oci.logs.search(place[1], endings, start.timestamp() * 1000, end.timestamp() * 1000, limit)
        return {"results": found, "summary": {"resultCount": len(found), "fieldCount": 0}, "fields": []}

    @app.get("/20160918/subnets/{subnet_id}")
    def subnet(subnet_id: str) -> Any:
        if not subnet_id.startswith("ocid1.subnet."):
            return not_found(subnet_id)
        return {"id": subnet_id, "cidrBlock": "127.0.0.0/8", "lifecycleState": "AVAILABLE"}

    @app.get("/20190301/secretbundles/{secret_id}")
    def secret(request: Request, secret_id: str) -> Any:
        if secret_id not in oci.secrets or not request.state.signer.startswith("ST$"):  # for job runs alone
            return not_found(secret_id)
        content = base64.b64encode(oci.secrets[secret_id].encode()).decode()
        return {
            "secretId": secret_id,
            "versionNumber": 1,
            "secretBundleContent": {"contentType": "BASE64", "content": content},
        }


def add_objects(app: FastAPI, oci: Oci) -> None:
    place = "/n/{namespace}/b/{bucket}/o"

    @app.put(place + "/{name:path}")
    async def put(request: Request, namespace: str, bucket: str, name: str) -> Response:
        oci.objects[f"{namespace}/{bucket}/{name}"] = await request.body()
        return Response(headers={"etag": uuid.uuid4().hex})

    @app.api_route(place + "/{name:path}", methods=["GET", "HEAD"])
    def get(request: Request, namespace: str, bucket: str, name: str) -> Response:
        data = oci.objects.get(f"{namespace}/{bucket}/{name}")
        if data is None:
            return refusal(404, "ObjectNotFound", f"The object '{name}' was not found")
        if request.method == "HEAD":
            told = {
                "content-length": str(len(data)),
                "last-modified": formatdate(usegmt=True),
                "accept-ranges": "bytes",
                "etag": "1",
                "version-id": "1",
                "storage-tier": "Standard",
            }
            return Response(headers=told, media_type="application/octet-stream")
        first, _, last = request.headers.get("range", "bytes=0-").removeprefix("bytes=").partition("-")
        part = data[int(first) : int(last) + 1 if last else len(data)]
        return Response(part, status_code=206 if "range" in request.headers else 200)

    @app.delete(place + "/{name:path}")
    def delete(namespace: str, bucket: str, name: str) -> Response:
        is_there = oci.objects.pop(f"{namespace}/{bucket}/{name}", None) is not None
        return Response(status_code=204) if is_there else refusal(404, "ObjectNotFound", name)

    @app.get(place)
    def list_objects(namespace: str, bucket: str, prefix: str = "") -> Any:
        start = f"{namespace}/{bucket}/"
        found = [key.removeprefix(start) for key in oci.objects if key.startswith(start + prefix)]
        return {"objects": [{"name": name, "size": len(oci.objects[start + name])} for name in found], "prefixes": []}


def add_controls(app: FastAPI, oci: Oci) -> None:
    @app.post("/emulator/settings")
    def change(body: dict[str, Any]) -> None:
        for name, value in body.items():
            setattr(oci.settings, name, value)

    @app.post("/emulator/faults")
    def add_fault(body: dict[str, Any]) -> None:
        oci.faults.append(Fault(**body))

    @app.post("/emulator/secrets")
    def add_secret(body: dict[str, str]) -> None:
        oci.secrets.update(body)

    @app.get("/emulator/state")
    def state() -> Any:
        runs = [{**run.view(), "pids": [process.pid for process in run.processes]} for run in oci.runs.values()]
        return {"jobs": list(oci.jobs.values()), "runs": runs, "objects": list(oci.objects), "calls": oci.calls}

    @app.get("/emulator/logs")
    def logs() -> Any:
        """All of them: when (ms), by whom, what."""
        contents = [(result["datetime"], result["logContent"]) for _, result in oci.logs.records]
        return [(at, content["source"], content["data"]["message"]) for at, content in contents]

    @app.post("/emulator/reset")
    def reset() -> None:
        """As an unused tenancy."""
        oci.settings.cancel_hangs = False
        for run in list(oci.runs.values()):
            run.cancel()
            run.kill()
            run.thread.join(10)
        for name, value in vars_of(Settings()).items():
            setattr(oci.settings, name, value)
        for kept in (oci.jobs, oci.runs, oci.secrets, oci.objects, oci.answered):
            kept.clear()
        oci.faults.clear()
        oci.calls.clear()


def vars_of(settings: Settings) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in Settings.__slots__}


def main() -> None:
    told = json.loads(Path(sys.argv[1]).read_text())
    keys = {name: load_pem_public_key(pem.encode()) for name, pem in told["keys"].items()}
    listening = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    buckets = {"FSSPEC_OCI": json.dumps({"config_kwargs": {"service_endpoint": url}})}  # where oci:// leads
    oci = Oci(
        folder=Path(told["folder"]),
        image=Image(command=tuple(told["command"]), environment={**told["environment"], **buckets}),
        keys=signatures.KeyRing(keys),  # type: ignore[arg-type]
    )
    server = uvicorn.Server(uvicorn.Config(make_app(oci), log_level="warning", timeout_graceful_shutdown=1))
    signal.signal(signal.SIGTERM, lambda *_: setattr(server, "should_exit", True))
    aside = Path(told["ready"]).with_suffix(".new")
    aside.write_text(url)
    aside.replace(told["ready"])  # whole, or not there
    try:
        server.run(sockets=[listening])
    finally:
        for run in oci.runs.values():
            run.kill()
        deadline = time.monotonic() + 5
        for run in oci.runs.values():
            run.thread.join(max(0.0, deadline - time.monotonic()))


if __name__ == "__main__":
    main()
