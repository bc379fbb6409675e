"""Names of trials that are the same for all coordinators, and which of the parked ones will not continue. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from everstep import wire
from everstep.coordinator.experiments.live import LiveExperiment


def machine_key(identity: str, job: str) -> str:
    """The name of a job's trial on every machine. `identity`: that of the store."""
    return f"{identity}-{job}"


def ended_keys(keys: Iterable[str], identity: str, live: Mapping[int, LiveExperiment]) -> list[str]:
    """The keys of trials that are over, deleted, or from another store."""
    return [key for key in keys if not _may_continue(key, identity, live)]


def _may_continue(key: str, identity: str, live: Mapping[int, LiveExperiment]) -> bool:
    for found in live.values():
        before = machine_key(identity, wire.trial_job(found.number, 0)).removesuffix("0")
        number = key.removeprefix(before)
        if number != key and number.isdecimal() and (trial := found.trials.get(int(number))) is not None:
            return not trial.is_over
    return False
