"""Gates: a script waits at a step, or at another place with a name, until the test opens it (stage.py)."""

from __future__ import annotations

import os
import time
from pathlib import Path

from everstep.events import emit


def pass_gate(step: int | str, **facts: int) -> None:
    """Wait here if the step is one of GATES and the gate is closed."""
    if str(step) in os.environ.get("GATES", "").split(","):
        wait_at(step, **facts)


def hold(place: str, step: int) -> None:
    """Wait here if HOLDS has PLACE@STEP:WORKER for this worker and the gate PLACE is closed."""
    if f"{place}@{step}:{os.environ.get('EVERSTEP_WORKER')}" in os.environ.get("HOLDS", "").split(","):
        wait_at(place)


def wait_at(step: int | str, **facts: int) -> None:
    emit("gate.reached", step=step, **facts)
    while not is_open(step):
        time.sleep(0.002)


def is_open(step: int | str) -> bool:
    return (Path(os.environ["EVERSTEP_EVENTS"]).parent / f"gate-{step}").exists()


_is_first = True


def pass_first_time() -> None:
    """In a body: the first time in this process, wait at the gate first-WORKER, as if a compiler took that long."""
    global _is_first
    if _is_first:
        _is_first = False
        pass_gate(f"first-{os.environ.get('EVERSTEP_WORKER')}")
