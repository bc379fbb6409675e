"""The checkpoints of this job. A node knows those that its own workers have saved; of all others the job's coordinator
is asked, so that a node that has just come knows as much. Runs without torch."""

from __future__ import annotations

from collections.abc import Callable

from everstep import env, wire
from everstep.checkpoint import index
from everstep.client.calls import Coordinator
from everstep.errors import UNKNOWN, NoCheckpoint, Refused
from everstep.retry import patiently

ASK_S = 60.0


def latest() -> str | None:
    """The UUID of the newest whole checkpoint of this job; None if it has none."""
    if index.place_of_job(env.job()) is None:
        known = _ask(lambda coordinator: coordinator.latest_checkpoint())
        if known is not None:
            index.remember_job(known.uri)
    return index.latest()


def find(uuid: str) -> tuple[str, int]:
    """Its place and step, whichever job has saved it; NoCheckpoint if it is unknown or was deleted."""
    try:
        return index.find(uuid)
    except NoCheckpoint as unknown:
        is_unknown = unknown.code == "checkpoint-uuid-unknown"
        if not is_unknown or (known := _ask(lambda coordinator: coordinator.checkpoint(uuid))) is None:
            raise
    return known.uri, known.step


def _ask(call: Callable[[Coordinator], wire.SavedCheckpoint]) -> wire.SavedCheckpoint | None:
    """None: it knows of none, or this is not a job."""
    url, token = env.coordinator_url(), env.token()
    if not url or not token:
        return None
    try:
        with Coordinator(url, token, env.job()) as coordinator:
            return patiently(lambda: call(coordinator), ASK_S)
    except Refused as refused:
        if refused.status != UNKNOWN:
            raise
        return None
