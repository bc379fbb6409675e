"""Gates: a script waits at a step, or at another place with a name, until the test opens it (stage.py)."""

from __future__ import annotations

import os
import time
from pathlib import Path

from everstep.events import emit


def pass_gate(step: int | str, **facts: int) -> None:
    """Wait here if the step is one of GATES and the gate is closed."""
    if str(step) in os.environ.get("GATES", "").split(","):
        emit("gate.reached", step=step, **facts)
        while not is_open(step):
            time.sleep(0.002)


def is_open(step: int | str) -> bool:
    return (Path(os.environ["EVERSTEP_EVENTS"]).parent / f"gate-{step}").exists()
