"""Events for machines and tests: one JSON line each, appended to the file named by EVERSTEP_EVENTS.

Every event of the package is declared below, in one line; the list in docs/testing.md comes from there. Scripts may
emit events of their own. A line is one write to a file opened for append, so lines of several processes never mix.
`t` is CLOCK_MONOTONIC, comparable between the processes of a node. Without the variable, nothing is written.
No work depends on events: one that cannot be written (a full or read-only disk) is dropped and counted, and the first
drop is logged."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from everstep import env
from everstep.storage import private_file

log = logging.getLogger("everstep")

# --- declarations ------------------------------------------------------------------------------------

WORKER, AGENT, SAVER, COORDINATOR = "worker", "agent", "saver", "coordinator"  # senders

_KINDS: dict[str, Any] = {  # of the fields that several events have
    **dict.fromkeys(("step", "generation", "rank", "size", "epoch", "attempt", "exit_code", "lease", "bytes"), int),
    **dict.fromkeys(("reason", "job", "worker", "agent", "dataset", "uri"), str),
    **dict.fromkeys(("num_epochs", "num_steps"), int | None),
    "positions": list,
    "seconds": float,
    "is_orphan": bool,
}

_ACCEPTED: dict[Any, Any] = {float: float | int, list: list | tuple}  # written as the same JSON


@dataclass(frozen=True, kw_only=True, slots=True)
class EventDeclaration:
    name: str
    sender: str
    fields: dict[str, Any]  # by name: a type, or a union of types
    meaning: str

    def fits(self, facts: Mapping[str, Any]) -> bool:
        return facts.keys() == self.fields.keys() and all(
            isinstance(value, _ACCEPTED.get(self.fields[name], self.fields[name])) for name, value in facts.items()
        )


declared: list[EventDeclaration] = []


def declare(name: str, sender: str, fields: str, meaning: str, /, **more: Any) -> None:
    """`fields`: the usual ones, by name; `more`: others, by name and type. Two senders may use one name."""
    kinds = {field: _KINDS[field] for field in fields.split()} | more
    declared.append(EventDeclaration(name=name, sender=sender, fields=kinds, meaning=meaning))


declare("worker.waiting", WORKER, "reason", "the worker is waiting for a generation")
declare("generation.formed", WORKER, "generation rank size reason", "the worker is a member of a new generation")
declare("generation.closed", WORKER, "generation reason", "the worker's generation is closed")
declare("newcomers.known", WORKER, "generation", "workers are waiting to join", number=int)
declare(
    "worker.warmed",
    WORKER,
    "seconds",
    "a newcomer has rehearsed its loop body and has memory for a state of this size, and is ready to join",
    state_bytes=int,
)
declare("backend.chosen", WORKER, "generation reason", "how gradients travel in this generation", backend=str)
declare("link.formed", WORKER, "generation seconds", "the worker's device is connected to the others", backend=str)
declare("link.ended", WORKER, "generation seconds", "the old connection has ended, in the background")
declare("regroup.settled", WORKER, "generation size rank step seconds reason", "it trains in the new generation")
declare("transfer.started", WORKER, "bytes", "the worker sends its state to this rank, which may pass it on", to=int)
declare("transfer.sent", WORKER, "", "all receivers have the state", to=int)
declare("transfer.receiving", WORKER, "", "the worker is receiving a state", sender=str)
declare("transfer.received", WORKER, "", "the worker has received and verified the state", sender=str)
declare("step.committed", WORKER, "step generation size", "a step was applied")
declare(
    "plan.dealt",
    WORKER,
    "step generation reason",
    "rank 0 reports how many micro-batches each rank gets from now on",
    shares=list,
)
declare("worker.slow", WORKER, "worker generation step reason", "rank 0 names a slow worker", factor=float)
declare("worker.recovered", WORKER, "worker generation step reason", "the worker is no longer slow", factor=float)
declare("training.progress", WORKER, "step epoch num_epochs num_steps", "rank 0's progress", loss=float | None)
declare("samples.used", WORKER, "step", "samples of a committed step, as [start, count]", parts=list)
declare("records.left_out", WORKER, "dataset epoch positions", "end of an epoch, less than a batch", records=int)
declare("report.refused", WORKER, "dataset lease reason", "the coordinator refused a report", start=int, count=int)
declare("checkpoint.written", WORKER, "step bytes seconds", "a checkpoint is durable")
declare("checkpoint.failed", WORKER, "step reason", "a checkpoint could not be written", kind=str)
declare("checkpoint.skipped", WORKER, "step", "a checkpoint was due while earlier ones were still being written")
declare("checkpoint.kept", WORKER, "step", "the state is in memory, to be written in the background")
declare("checkpoint.loaded", WORKER, "step generation", "a checkpoint was loaded", is_from_memory=bool)
declare("data.loaded", WORKER, "", "data that a whole node shares was loaded", name=str, size_bytes=int)
declare("data.freed", AGENT, "", "no worker of the node uses this data any more", size_bytes=int)
declare("worker.started", AGENT, "worker agent", "a worker process is running", pid=int)
declare("worker.exited", AGENT, "worker exit_code step", "a worker process has exited", signal=str, micro_batch=int)
declare("worker.killed", AGENT, "worker reason", "the agent killed a worker")
declare("saver.opened", AGENT, "", "the node's saver is running", saver=int)
declare("pool.joined", AGENT, "agent", "a node offers its slots to a pool", pool=str, num_slots=int)
declare(
    "assignment.started", AGENT, "agent job", "a pool's agent has started a trial's process", assignment=int, pid=int
)
declare("assignment.ended", AGENT, "agent job exit_code", "a trial's process has ended", assignment=int)
declare("agent.ended", AGENT, "agent exit_code reason", "nothing is left to run on the node")
declare("saver.wrote", SAVER, "uri step is_orphan", "a state that a worker left in memory is durable", size_bytes=int)
declare("saver.failed", SAVER, "uri step is_orphan reason", "a state could not be written")
declare("saver.dropped", SAVER, "uri reason", "what an ended worker left in memory was freed", owner=str)
declare("attempt.began", COORDINATOR, "job attempt size reason", "all workers start together", agents=list)
declare("attempt.closed", COORDINATOR, "job attempt size reason", "all workers of an attempt must stop", agents=list)
declare("generation.formed", COORDINATOR, "job generation reason", "a new generation, with its members", members=list)
declare("generation.closed", COORDINATOR, "job generation reason", "a generation is closed", members=list)
declare("worker.lost", COORDINATOR, "job worker generation reason", "a worker was silent for a whole lease")
declare("worker.dead", COORDINATOR, "job worker generation reason", "a worker's death is confirmed")
declare("worker.left", COORDINATOR, "job worker generation reason", "a worker's script finished")
declare("worker.sent", COORDINATOR, "job worker generation reason", "the job does not need this worker")
declare("job.finished", COORDINATOR, "job reason", "the job succeeded")
declare("job.stopped", COORDINATOR, "job reason", "the job failed or was stopped")
declare("dataset.restored", COORDINATOR, "job dataset", "a dataset continues from a checkpoint", done=int)
declare("lease.asked", COORDINATOR, "job worker dataset lease", "a worker is asked to return unstarted samples")
declare("lease.freed", COORDINATOR, "job worker dataset reason", "a lost worker's samples go to others", ranges=list)
declare("shard.failed", COORDINATOR, "job dataset reason", "a shard failed too often", shard=str)


def markdown() -> str:
    """The table in docs/testing.md."""
    rows = [
        f"| `{each.name}` | {each.sender} | {', '.join(map(_shown, each.fields.items()))} | {each.meaning} |"
        for each in declared
    ]
    return "\n".join(["| event | from | fields | meaning |", "| --- | --- | --- | --- |", *rows, ""])


def _shown(field: tuple[str, Any]) -> str:
    name, kind = field
    return f"`{name}` {kind.__name__ if isinstance(kind, type) else str(kind).replace(' | ', ' or ')}"


def check(event: str, facts: Mapping[str, Any]) -> None:
    """TypeError unless the event is declared with these fields."""
    known = [each for each in declared if each.name == event]
    if not known:
        raise TypeError(f"event {event} is not declared in everstep/events.py")
    if not any(each.fits(facts) for each in known):
        raise TypeError(f"event {event} is declared with {[each.fields for each in known]}, but emitted with {facts}")


# --- emitting ----------------------------------------------------------------------------------------

num_dropped = 0  # events of this process that were not written

_file: tuple[str, int, int] | None = None  # path, pid, descriptor
_is_torn = False  # the last line was cut short: the next one must not be taken for its end


def emit(event: str, /, **facts: Any) -> None:
    """Append one event, with the sender's `pid` and `worker` unless given. Never raises, but for an event of the
    package that is not declared, where tests ask for that (EVERSTEP_CHECK_EVENTS)."""
    if env.value(env.CHECK_EVENTS) == "1" and sys._getframe(1).f_globals["__name__"].startswith("everstep."):
        check(event, facts)
    try:
        _write({"event": event, "t": time.monotonic(), "pid": os.getpid(), "worker": env.worker(), **facts})
    except Exception as error:
        _drop(event, error)


def _write(event: dict[str, Any]) -> None:
    global _is_torn
    descriptor = _descriptor()
    if descriptor is None:
        return
    line = b"\n" * _is_torn + json.dumps(event, separators=(",", ":")).encode() + b"\n"
    written = os.write(descriptor, line)
    _is_torn = 0 < written < len(line) or (_is_torn and not written)
    if written < len(line):
        raise OSError(f"only {written} of {len(line)} bytes were written")


def _drop(event: str, error: Exception) -> None:
    global num_dropped
    num_dropped += 1
    if num_dropped == 1:
        log.warning("dropped event %s, which cannot be written to %s: %s", event, env.value(env.EVENTS), error)


def _descriptor() -> int | None:
    global _file
    path = env.value(env.EVENTS)
    if path is None:
        return None
    if _file is None or _file[:2] != (path, os.getpid()):
        _file = (path, os.getpid(), private_file.descriptor(path, os.O_WRONLY | os.O_APPEND))
    return _file[2]
