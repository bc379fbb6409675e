"""Read a request's body into its message, or refuse it: 413 if it is too long, 422 if it is not what it should be.

Strict: no unknown field, no text where a number belongs, no number that a database or a clock cannot hold.
A body that is too long is refused without being read to its end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config

from everstep import wire
from everstep.errors import Refused

T = TypeVar("T")
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

MAX_BODY_BYTES = 1 << 20
MAX_INT = 1 << 53  # exact in JSON everywhere, and in any database
LEAST = {"exit_code": -MAX_INT, "leaf": -1, "node_rank": -1}  # all other numbers count something
POSITIVE = {
    "start_workers",
    "min_workers",
    "max_workers",
    "heartbeat_s",
    "lease_s",
    "leaf_deaths",
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
PHASES = (wire.COMPUTING, wire.WAITING, wire.OUTSIDE)

_STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
_KINDS: tuple[type[Any], ...] = (
    wire.Policy, wire.JobSpec, wire.Stop, wire.WorkerState, wire.Fitness, wire.AgentReport, wire.AgentLeave,
    wire.SlotRequest, wire.WorkerExit,
    wire.Announce, wire.Watch, wire.Arrive, wire.Broken, wire.Settled, wire.Leave,
    wire.DatasetSpec, wire.Part, wire.FailedPart, wire.LeaseRequest, wire.BadShard, wire.ShardCheckpoint,
    wire.RestoreShards,
)  # fmt: skip
_ADAPTERS: dict[type[Any], TypeAdapter[Any]] = {kind: TypeAdapter(with_config(_STRICT)(kind)) for kind in _KINDS}
_NUMBERS: dict[type[Any], tuple[tuple[str, int], ...]] = {
    kind: tuple(
        (each.name, LEAST.get(each.name, int(each.name in POSITIVE and each.type != "float")))
        for each in fields(kind)
        if str(each.type).startswith(("int", "float"))
    )
    for kind in _KINDS
}


async def read_body(scope: Scope, receive: Receive) -> bytes:
    for name, value in scope["headers"]:
        if name == b"content-length" and int(value) > MAX_BODY_BYTES:
            raise _too_long()
    message = await receive()
    if not message.get("more_body"):
        body: bytes = message.get("body", b"")
        if len(body) > MAX_BODY_BYTES:
            raise _too_long()
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
            raise _too_long()
        if not message.get("more_body"):
            return b"".join(parts)


def _too_long() -> Refused:
    return Refused(f"the body is longer than {MAX_BODY_BYTES} bytes", status=413)


def parse(kind: type[T], body: bytes) -> T:
    try:
        message: T = _ADAPTERS[kind].validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise Refused(f"{kind.__name__}: {where}: {first['msg']}"[:300], status=422) from None
    if b"\\u0000" in body:
        raise Refused(f"{kind.__name__}: a text must not contain NUL", status=422)
    for problem in _problems(message):
        raise Refused(f"{kind.__name__}: {problem}", status=422)
    return message


def _problems(message: Any) -> Iterator[str]:
    """What the types alone cannot say."""
    for name, least in _NUMBERS[type(message)]:
        value = getattr(message, name)
        if value is not None and not least <= value <= MAX_INT:
            yield f"{name} is {value}, not between {least} and 2^53"
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
