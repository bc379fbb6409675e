"""Read a request's body into its message, or refuse it: 413 if it is too long, 422 if it is not what it should be.

Strict: no unknown field, no text where a number belongs, no number that a database or a clock cannot hold.
A body that is too long is refused without being read to its end."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from dataclasses import asdict, fields, is_dataclass
from typing import Any, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config

from everstep import wire
from everstep.errors import Refused

T = TypeVar("T")
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

MAX_BODY_BYTES = 1 << 20
MAX_INT = 1 << 53  # exact in JSON everywhere, and in any database
MAX_FLOAT = 1 << 50  # a number just above it is still told from it
LEAST = {"exit_code": -MAX_INT, "micro_batch": -1, "node_rank": -1}  # all other numbers count something
POSITIVE = {
    "start_workers",
    "min_workers",
    "max_workers",
    "heartbeat_s",
    "lease_s",
    "micro_batch_deaths",
    "start_nodes",
    "min_nodes",
    "max_nodes",
    "minibatches_per_shard",
    "shard_failures",
    "size",
    "batch_size",
    "epochs",
    "count",
    "request",
}
MOST_LEASES = 64  # that one call may ask for …
MOST_PARTS = 8192  # … and parts that it may bring
MOST_REPORTS = 1000  # of metrics, in one call …
MAX_REPORT_BYTES = 1 << 16  # … and as JSON, each
MAX_DEPTH = 8
PHASES = (wire.COMPUTING, wire.WAITING, wire.OUTSIDE)

MAX_TEXT = 1 << 16
MAX_NAME = 256
NAMES = {"agent", "incarnation", "kind", "node", "request", "worker", "address", "replaces"}
MOST = {"num_workers": 4096, "store_port": 65535, "probe_port": 65535, "free_port": 65535}

_STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, str_max_length=MAX_TEXT)
_KINDS: tuple[type[Any], ...] = (
    wire.Policy, wire.JobSpec, wire.Stop, wire.WorkerState, wire.Fitness, wire.AgentReport, wire.AgentLeave,
    wire.SlotRequest, wire.WorkerExit,
    wire.Announce, wire.Watch, wire.Arrive, wire.Broken, wire.Settled, wire.Leave,
    wire.DatasetSpec, wire.LeasePart, wire.FailedPart, wire.LeaseRequest, wire.BadShard, wire.ShardCheckpoint,
    wire.RestoreShards, wire.MetricReport, wire.MetricReports,
)  # fmt: skip


def _must_be_positive(kind: type[Any], name: str) -> bool:
    return name in POSITIVE and kind is not wire.MetricReport  # a fit begins with no epoch done


ADAPTERS: dict[type[Any], TypeAdapter[Any]] = {kind: TypeAdapter(with_config(_STRICT)(kind)) for kind in _KINDS}
NUMBERS: dict[type[Any], tuple[tuple[str, int, int], ...]] = {
    kind: tuple(
        (
            each.name,
            LEAST.get(each.name, int(_must_be_positive(kind, each.name) and each.type != "float")),
            MOST.get(each.name, MAX_INT if str(each.type).startswith("int") else MAX_FLOAT),
        )
        for each in fields(kind)
        if str(each.type).startswith(("int", "float"))
    )
    for kind in _KINDS
}
_NAMES: dict[type[Any], tuple[str, ...]] = {
    kind: tuple(each.name for each in fields(kind) if each.name in NAMES and each.type == "str") for kind in _KINDS
}


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
            raise Refused("the request broke off", status=400)
        parts.append(message.get("body", b""))
        num_bytes += len(parts[-1])
        if num_bytes > MAX_BODY_BYTES:
            raise _too_long(num_bytes)
        if not message.get("more_body"):
            return b"".join(parts)


def _too_long(num_bytes: int) -> Refused:
    return Refused(f"the body has {num_bytes} bytes or more, and {MAX_BODY_BYTES} are allowed", status=413)


def check_name(what: str, name: str) -> str:
    """One that comes in a path."""
    if len(name) > MAX_NAME:
        raise Refused(f"the {what}'s name has {len(name)} characters, more than {MAX_NAME}", status=422)
    if "\0" in name:  # no database takes it
        raise Refused(f"the {what}'s name must not contain NUL", status=422)
    return name


def parse(kind: type[T], body: bytes) -> T:
    try:
        message: T = ADAPTERS[kind].validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise Refused(f"{kind.__name__}: {where}: {first['msg']}"[:300], status=422) from None
    if b"\\u0000" in body and _has_nul(asdict(message)):  # type: ignore[call-overload]
        raise Refused(f"{kind.__name__}: a text must not contain NUL", status=422)
    for problem in _problems(message):
        raise Refused(f"{kind.__name__}: {problem}", status=422)
    if len(body) > MAX_NAME:
        _check_names(kind, message)
    return message


def _has_nul(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_has_nul(each) for pair in value.items() for each in pair)
    if isinstance(value, list):
        return any(map(_has_nul, value))
    return isinstance(value, str) and "\0" in value


def _check_names(kind: type[Any], message: Any) -> None:
    for problem in _name_problems(kind, message):
        raise Refused(f"{kind.__name__}: {problem}", status=422)


def _name_problems(kind: type[Any], message: Any) -> Iterator[str]:
    for name in _NAMES[kind]:
        if (num := len(getattr(message, name))) > MAX_NAME:
            yield f"{name} has {num} characters, more than {MAX_NAME}"


def _problems(message: Any) -> Iterator[str]:
    """What the types alone cannot say."""
    for name, least, most in NUMBERS[type(message)]:
        value = getattr(message, name)
        if value is not None and not least <= value <= most:
            yield f"{name} is {value}, not between {least} and {most}"
    if isinstance(message, wire.Watch):
        if message.phase not in PHASES:
            yield f"phase is none of {', '.join(PHASES)}"
    elif isinstance(message, wire.Policy):
        yield from wire.policy_problems(message)
    elif isinstance(message, wire.JobSpec):
        yield from _problems(message.policy)
    elif isinstance(message, wire.AgentReport):
        for state in message.workers:
            yield from _problems(state)
        if message.fitness is not None:
            yield from _problems(message.fitness)
    elif isinstance(message, wire.LeaseRequest):
        yield from _lease_problems(message)
    elif isinstance(message, wire.DatasetSpec):
        yield from _dataset_problems(message)
    elif isinstance(message, wire.RestoreShards):
        yield from _problems(message.checkpoint)
        for bad in message.checkpoint.bad_shards:
            yield from _problems(bad)
    elif isinstance(message, wire.MetricReports):
        yield from _reports_problems(message)
    assert is_dataclass(message)


def _lease_problems(message: wire.LeaseRequest) -> Iterator[str]:
    parts = (*message.done, *message.returned, *message.failed)
    if len(parts) > MOST_PARTS:
        yield f"{len(parts)} parts are more than {MOST_PARTS}"
    for part in parts:
        yield from _problems(part)
    if message.wants > MOST_LEASES:
        yield f"wants is {message.wants}, more than {MOST_LEASES}"
    if message.settles and not message.generation:
        yield "settles is said of no generation"


def _dataset_problems(spec: wire.DatasetSpec) -> Iterator[str]:
    if spec.size * spec.epochs > MAX_INT:
        yield f"size={spec.size} times epochs={spec.epochs} is more than 2^53"
    if spec.on_bad_shard not in (wire.STOP, wire.SKIP):
        yield f"on_bad_shard is neither {wire.STOP} nor {wire.SKIP}"


def _reports_problems(message: wire.MetricReports) -> Iterator[str]:
    if len(message.reports) > MOST_REPORTS:
        yield f"{len(message.reports)} reports are more than {MOST_REPORTS}"
    for report in message.reports:
        yield from _problems(report)
        yield from _name_problems(wire.MetricReport, report)
        yield from _value_problems(report.metrics, MAX_DEPTH)
        yield from _value_problems(report.facts, MAX_DEPTH)
        if (num_bytes := len(wire.to_json(report))) > MAX_REPORT_BYTES:
            yield f"{report.kind} of batch {report.batches} has {num_bytes} bytes, more than {MAX_REPORT_BYTES}"


def _value_problems(value: Any, depth: int) -> Iterator[str]:
    """Of what may be any JSON."""
    if depth == 0:
        yield f"values are nested more than {MAX_DEPTH} deep"
    elif isinstance(value, dict):
        for name, each in value.items():
            if len(name) > MAX_NAME:
                yield f"a name has {len(name)} characters, more than {MAX_NAME}"
            yield from _value_problems(each, depth - 1)
    elif isinstance(value, list):
        for each in value:
            yield from _value_problems(each, depth - 1)
    elif isinstance(value, float) and not math.isfinite(value):
        yield f"{value} is not finite"
    elif isinstance(value, int) and abs(value) > MAX_INT:
        yield f"{value.bit_length()} bits are too many for a whole number"
