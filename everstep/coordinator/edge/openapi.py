"""The types of messages and parameters as pydantic sees them: what validates them, and the OpenAPI document.

The document is for people, and for tools that make clients or test the service."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import is_dataclass
from functools import cache
from typing import Any, get_args, get_type_hints

from pydantic import ConfigDict, TypeAdapter, with_config

from everstep import __version__
from everstep.coordinator.roster.facts import ID, SHA256
from everstep.wire.bounds import MAX_NAME, MAX_TEXT
from everstep.wire.operations import OPERATIONS, Operation

_STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, str_max_length=MAX_TEXT)
_REFUSALS = {
    401: "no valid token",
    403: "the token's role may not do this",
    404: "no such job, worker or generation",
    405: "the path is known, the method is not",
    409: "refused: out of date, or over a limit",
    413: "the body is too long",
    422: "not a valid body or parameter",
    429: "too many calls without a token, or that fail; Retry-After says when to come back",
    503: "nothing was kept; ask again",
}
_WITHOUT_BODY = {413}
_PATTERNS = {"job": f"^{ID.pattern}$", "dataset": f"^{ID.pattern}$", "digest": f"^{SHA256}$"}
_BINARY = {"schema": {"type": "string", "format": "binary"}}
_REFUSAL = {
    "type": "object",
    "required": ["detail", "code"],
    "properties": {"detail": {"type": "string"}, "code": {"type": "string"}},
}


@cache
def adapter(kind: type[Any]) -> TypeAdapter[Any]:
    """Validates JSON as `kind`, and describes it."""
    for each in {kind, *_inner(kind)}:
        with_config(_STRICT)(each)
    return TypeAdapter(kind)


def _inner(kind: Any) -> Iterator[type[Any]]:
    """The messages that a message holds."""
    hints = get_type_hints(kind).values() if is_dataclass(kind) else get_args(kind)
    for hint in hints:
        if isinstance(hint, type) and is_dataclass(hint):
            yield hint
        yield from _inner(hint)


@cache
def parameter_adapter(operation: Operation, name: str) -> TypeAdapter[Any]:
    """Of a value that comes as text, in the path or the query."""
    return TypeAdapter(operation.types[name])


@cache
def document() -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for each in OPERATIONS:
        paths.setdefault(each.path, {})[each.method.lower()] = _describe(each)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Everstep coordinator",
            "version": __version__,
            "description": "Workers and agents call it; it calls no one. Every call may be repeated.",
        },
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": {**_schemas(), "Refusal": _REFUSAL, "Done": {"type": "object"}},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _describe(each: Operation) -> dict[str, Any]:
    statuses = [status for status in _REFUSALS if each.body or status not in _WITHOUT_BODY]
    described: dict[str, Any] = {
        "operationId": each.name,
        "summary": each.summary,
        "description": f"Needs a token whose role may do what `{each.role}` may.",
        "parameters": [_parameter(each, name) for name in (*each.in_path, *each.in_query)],
        "responses": {
            "200": {"description": "done", "content": _content(each)},
            **{str(status): _refused(status) for status in statuses},
        },
    }
    if each.body:
        content = {"application/octet-stream": _BINARY} if each.request is bytes else _json(each.request.__name__)
        described["requestBody"] = {"required": True, "content": content}
    return described


def _parameter(each: Operation, name: str) -> dict[str, Any]:
    if name in _PATTERNS:
        schema: dict[str, Any] = {"type": "string", "pattern": _PATTERNS[name]}
    else:
        schema = parameter_adapter(each, name).json_schema()
    if name in each.in_query:
        return {"name": name, "in": "query", "required": False, "schema": {**schema, "default": each.in_query[name]}}
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _content(each: Operation) -> dict[str, Any]:
    if each.reply is bytes:
        return {"application/gzip": _BINARY}
    if each.reply is str:
        return {"text/plain": {"schema": {"type": "string"}}}
    return _json(each.reply.__name__ if _is_message(each.reply) else "Done")


def _is_message(kind: Any) -> bool:
    return getattr(kind, "__module__", "").startswith("everstep.")


def _refused(status: int) -> dict[str, Any]:
    described: dict[str, Any] = {"description": _REFUSALS[status], "content": _json("Refusal")}
    if status == 429:
        described["headers"] = {"Retry-After": {"schema": {"type": "integer", "minimum": 1}, "description": "seconds"}}
    return described


def _json(name: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}


def _schemas() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for kind in {each.reply for each in OPERATIONS if _is_message(each.reply)}:
        _add(found, kind, TypeAdapter(kind), "serialization")
    for kind in {each.request for each in OPERATIONS if each.body} - {bytes}:
        _add(found, kind, adapter(kind), "validation")
    return dict(sorted(found.items()))


def _add(found: dict[str, Any], kind: type[Any], described: TypeAdapter[Any], mode: Any) -> None:
    schema = described.json_schema(mode=mode, ref_template="#/components/schemas/{model}")
    parts = schema.pop("$defs", {})
    if "$ref" not in schema:
        parts[kind.__name__] = schema
    for part in parts.values():
        for described_field in part["properties"].values():
            _add_limits(described_field)
    found.update(parts)


def _add_limits(field: dict[str, Any]) -> None:
    """Of the adapters' configuration, which a schema does not show."""
    if field.get("type") == "string" and "enum" not in field:
        field.setdefault("maxLength", MAX_TEXT)
    if field.get("type") == "object":
        field["propertyNames"] = {"maxLength": MAX_NAME}
