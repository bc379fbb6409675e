"""Read a request's body and parameters into values, or refuse them: 413 if too long, 422 if not what they should be.

Strict: no unknown field, no text where a number belongs, no number that a database or a clock cannot hold.
The bounds are part of the messages' types (`wire.bounds`). A body that is too long is not read to its end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from dataclasses import asdict, is_dataclass
from functools import cache
from typing import Any, TypeVar, get_args, get_type_hints
from urllib.parse import parse_qsl

from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config

from everstep.errors import Refused
from everstep.wire.bounds import MAX_TEXT
from everstep.wire.operations import Operation

T = TypeVar("T")
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

MAX_BODY_BYTES = 1 << 20

_STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, str_max_length=MAX_TEXT)


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


async def read_body(scope: Scope, receive: Receive) -> bytes:
    for name, value in scope["headers"]:
        if name == b"content-length" and int(value) > MAX_BODY_BYTES:
            raise _too_long(int(value))
    message = await receive()
    if not message.get("more_body"):
        body: bytes = message.get("body", b"")
        if len(body) > MAX_BODY_BYTES:
            raise _too_long(len(body))
        return body
    return await _read_on([message["body"]], receive)


async def _read_on(parts: list[bytes], receive: Receive) -> bytes:
    num_bytes = len(parts[0])
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Refused("the request broke off", status=400, code="request-broke-off")
        parts.append(message.get("body", b""))
        num_bytes += len(parts[-1])
        if num_bytes > MAX_BODY_BYTES:
            raise _too_long(num_bytes)
        if not message.get("more_body"):
            return b"".join(parts)


def _too_long(num_bytes: int) -> Refused:
    text = f"the body has at least {num_bytes} bytes, more than {MAX_BODY_BYTES}"
    return Refused(text, status=413, code="body-too-long")


def parse(kind: type[T], body: bytes) -> T:
    try:
        message: T = adapter(kind).validate_json(body)  # type: ignore[arg-type]
    except ValidationError as error:
        raise _invalid(kind.__name__, error, "body-invalid") from None
    if b"\\u0000" in body and _has_nul(asdict(message)):  # type: ignore[call-overload]
        raise Refused(f"{kind.__name__}: a text must not contain NUL", status=422, code="body-has-nul")
    for problem in message.problems() if hasattr(message, "problems") else ():
        raise Refused(f"{kind.__name__}: {problem}", status=422, code="body-inconsistent")
    return message


def read_parameters(operation: Operation, in_path: Mapping[str, str], query: bytes) -> dict[str, Any]:
    """All but the body, and the job's name, which is not one of the client's parameters."""
    given = {name: text for name, text in in_path.items() if name != "job"}
    if operation.in_query:
        sent = dict(parse_qsl(query.decode("latin-1"), keep_blank_values=True))
        given |= {name: sent[name] for name in operation.in_query if name in sent}
    return {name: _read(operation, name, text) for name, text in given.items()}


def _read(operation: Operation, name: str, text: str) -> Any:
    if "\0" in text:  # no database accepts it
        raise Refused(f"{name} must not contain NUL", status=422, code="parameter-has-nul")
    try:
        return parameter_adapter(operation, name).validate_strings(text)
    except ValidationError as error:
        raise _invalid(name, error, "parameter-invalid") from None


def _invalid(what: str, error: ValidationError, code: str) -> Refused:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part) for part in (what, *first["loc"]))
    return Refused(f"{where}: {first['msg']}"[:300], status=422, code=code)


def _has_nul(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_has_nul(each) for pair in value.items() for each in pair)
    if isinstance(value, list):
        return any(map(_has_nul, value))
    return isinstance(value, str) and "\0" in value
