"""The protocol as an OpenAPI document, made from the messages and from what `bodies` checks beyond their types.

For people and for tools that make clients or test the service. The table below is all that there is to call."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import TypeAdapter

from everstep import __version__, wire
from everstep.coordinator.edge.access import needed_role
from everstep.coordinator.edge.bodies import (
    ADAPTERS,
    MAX_INT,
    MAX_NAME,
    MAX_TEXT,
    MOST_REPORTS,
    NAMES,
    NUMBERS,
    PHASES,
)
from everstep.coordinator.roster.facts import ID, SHA256

_REFUSALS = {
    401: "no valid token",
    403: "the token's role may not do this",
    404: "no such job, worker or generation",
    405: "the path is known, the method is not",
    409: "refused: out of date, or more than there may be",
    413: "the body is too long",
    422: "not what it should be",
    429: "too many calls without a token, or that fail; Retry-After says when to come back",
    503: "nothing was kept; ask again",
}
_WITHOUT_BODY = {413}
_OF_A_JOB = "/v1/jobs/{job}"
_OF_AN_AGENT = f"{_OF_A_JOB}/agents/{{agent}}"
_OF_A_WORKER = f"{_OF_A_JOB}/workers/{{worker}}"
_OF_A_DATASET = f"{_OF_A_JOB}/datasets/{{dataset}}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Operation:
    method: str
    path: str
    takes: type[Any] | None = None
    gives: type[Any] | None = None  # None: an empty object
    summary: str
    gives_bytes: bool = False

    @property
    def id(self) -> str:
        return f"{self.method.lower()} {self.path}"


def _call(
    method: str, path: str, summary: str, takes: type[Any] | None = None, gives: type[Any] | None = None
) -> Operation:
    return Operation(method=method, path=path, takes=takes, gives=gives, summary=summary)


def _in_query(name: str, default: int, least: int, most: int) -> dict[str, Any]:
    schema = {"type": "integer", "minimum": least, "maximum": most, "default": default}
    return {"name": name, "in": "query", "required": False, "schema": schema}


OPERATIONS = (
    _call("GET", "/v1/health", "is it up, and what time is it there", gives=wire.Health),
    _call("GET", "/v1/openapi.json", "this document"),
    Operation(method="GET", path="/v1/code/{digest}", summary="a job's code, as a tarball", gives_bytes=True),
    _call("PUT", _OF_A_JOB, "create the job, or find it as it is", wire.JobSpec, wire.JobView),
    _call("GET", _OF_A_JOB, "look", gives=wire.JobView),
    _call("POST", f"{_OF_A_JOB}/stop", "end the job", wire.Stop),
    _call("GET", f"{_OF_A_JOB}/generations/{{number}}", "who is a member, and where", gives=wire.GenerationView),
    _call("POST", f"{_OF_A_JOB}/workers", "reserve a worker id", wire.SlotRequest, wire.Slot),
    _call("POST", f"{_OF_AN_AGENT}/report", "a node and its workers; held", wire.AgentReport, wire.AgentOrders),
    _call("POST", f"{_OF_AN_AGENT}/leave", "a node goes in good order", wire.AgentLeave),
    _call("POST", f"{_OF_A_WORKER}/exited", "it is gone for certain", wire.WorkerExit),
    _call("POST", f"{_OF_A_WORKER}/announce", "its process is up", wire.Announce, wire.Announced),
    _call("POST", f"{_OF_A_WORKER}/watch", "heartbeat, and what changed; held", wire.Watch, wire.Watched),
    _call("POST", f"{_OF_A_WORKER}/arrive", "ready for the next generation; held", wire.Arrive, wire.Arrived),
    _call("POST", f"{_OF_A_WORKER}/broken", "a collective failed", wire.Broken),
    _call("POST", f"{_OF_A_WORKER}/settled", "it holds the generation's state", wire.Settled),
    _call("POST", f"{_OF_A_WORKER}/leave", "wants to end after this step; held", wire.Leave, wire.Left),
    _call("POST", f"{_OF_A_WORKER}/lease", "report samples, lease more; held", wire.LeaseRequest, wire.Leased),
    _call("GET", f"{_OF_A_JOB}/datasets", "how far they are", gives=wire.Datasets),
    _call("PUT", _OF_A_DATASET, "register it, or find it as it is", wire.DatasetSpec, wire.DatasetView),
    _call("GET", f"{_OF_A_DATASET}/checkpoint", "what is done", gives=wire.ShardCheckpoint),
    _call("POST", f"{_OF_A_DATASET}/restore", "from now on this is done", wire.RestoreShards, wire.DatasetView),
    _call("POST", f"{_OF_A_JOB}/metrics", "what a fit has found out", wire.MetricReports),
    _call("GET", f"{_OF_A_JOB}/metrics", "what was kept after `since`", gives=wire.MetricsView),
)  # fmt: skip

_PARAMETERS: dict[str, dict[str, Any]] = {
    "job": {"type": "string", "pattern": f"^{ID.pattern}$"},
    "dataset": {"type": "string", "pattern": f"^{ID.pattern}$"},
    "agent": {"type": "string", "minLength": 1, "maxLength": MAX_NAME},
    "worker": {"type": "string", "minLength": 1, "maxLength": MAX_NAME},
    "number": {"type": "integer", "minimum": 0},
    "digest": {"type": "string", "pattern": f"^{SHA256}$"},
}
_QUERIES: dict[str, list[dict[str, Any]]] = {
    f"get {_OF_A_JOB}/metrics": [
        _in_query("since", 0, -MOST_REPORTS, MAX_INT),
        _in_query("limit", 100, 1, MOST_REPORTS),
    ]
}


@cache
def document() -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for each in OPERATIONS:
        paths.setdefault(each.path, {})[each.method.lower()] = _operation(each)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Everstep coordinator",
            "version": __version__,
            "description": "Workers and agents call it; it calls nobody. Every call may be repeated.",
        },
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": {**_schemas(), "Refusal": _refusal(), "Done": {"type": "object"}},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(each: Operation) -> dict[str, Any]:
    role = needed_role(each.method, each.path)
    names = re.findall(r"\{(\w+)\}", each.path)
    statuses = [status for status in _REFUSALS if each.takes is not None or status not in _WITHOUT_BODY]
    described: dict[str, Any] = {
        "operationId": each.id,
        "summary": each.summary,
        "description": f"Needs a token whose role may do what `{role}` may.",
        "parameters": [
            *({"name": name, "in": "path", "required": True, "schema": _PARAMETERS[name]} for name in names),
            *_QUERIES.get(each.id, []),
        ],
        "responses": {
            "200": {"description": "done", "content": _content(each)},
            **{str(status): _refused(status) for status in statuses},
        },
    }
    if each.takes is not None:
        described["requestBody"] = {"required": True, "content": _json(f"{each.takes.__name__}")}
    return described


def _content(each: Operation) -> dict[str, Any]:
    if each.gives_bytes:
        return {"application/gzip": {"schema": {"type": "string", "format": "binary"}}}
    return _json(each.gives.__name__ if each.gives else "Done")


def _refused(status: int) -> dict[str, Any]:
    said: dict[str, Any] = {"description": _REFUSALS[status], "content": _json("Refusal")}
    if status == 429:
        said["headers"] = {"Retry-After": {"schema": {"type": "integer", "minimum": 1}, "description": "seconds"}}
    return said


def _json(name: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}


def _refusal() -> dict[str, Any]:
    return {"type": "object", "required": ["detail"], "properties": {"detail": {"type": "string"}}}


def _schemas() -> dict[str, Any]:
    taken = {each.takes for each in OPERATIONS if each.takes}
    given = {each.gives for each in OPERATIONS if each.gives}
    found: dict[str, Any] = {}
    for kind in sorted(given, key=lambda kind: kind.__name__):
        _add(found, kind, TypeAdapter(kind), "serialization")
    for kind in sorted(taken, key=lambda kind: kind.__name__):
        _add(found, kind, ADAPTERS[kind], "validation")
    for kind in ADAPTERS:
        if kind.__name__ in found:
            _say_limits(kind, found[kind.__name__]["properties"])
    return found


def _add(found: dict[str, Any], kind: type[Any], adapter: TypeAdapter[Any], mode: Any) -> None:
    schema = adapter.json_schema(mode=mode, ref_template="#/components/schemas/{model}")
    found.update(schema.pop("$defs", {}))
    if "$ref" not in schema:
        found[kind.__name__] = schema


def _say_limits(kind: type[Any], properties: dict[str, Any]) -> None:
    """What `bodies` refuses besides."""
    for name, least, most in NUMBERS[kind]:
        for option in properties[name].get("anyOf", [properties[name]]):
            if option.get("type") in ("integer", "number"):
                option.update(minimum=least, maximum=most)
    for name, described in properties.items():
        if described.get("type") == "string":
            described["maxLength"] = MAX_NAME if name in NAMES else MAX_TEXT
        if described.get("type") == "object":
            described["propertyNames"] = {"maxLength": MAX_NAME}
        if name == "phase":
            described["enum"] = list(PHASES)
