"""Machines of unequal speed: PAUSES says how long each worker's micro-batches take, such as w1:0.15,*:0.03."""

from __future__ import annotations

import os
import time


def pause() -> None:
    by_worker = dict(each.split(":") for each in os.environ.get("PAUSES", "").split(",") if each)
    worker = os.environ.get("EVERSTEP_WORKER")
    if worker is not None:
        time.sleep(float(by_worker.get(worker, by_worker.get("*", 0))))
