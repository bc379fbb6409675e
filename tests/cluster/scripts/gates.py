"""Gates: a script waits at a step until the test opens it (stage.py)."""

from __future__ import annotations

import os
import time
from pathlib import Path

from everstep.events import emit


def pass_gate(step: int, **facts: int) -> None:
    """Wait here if the step is one of GATES and the gate is closed."""
    if str(step) in os.environ.get("GATES", "").split(","):
        emit("gate.reached", step=step, **facts)
        while not (Path(os.environ["EVERSTEP_EVENTS"]).parent / f"gate-{step}").exists():
            time.sleep(0.002)
