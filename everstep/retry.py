"""The one place that retries: ask again, ever more slowly, until an answer, a deadline or a stop.

Only a TemporaryError is worth another try; anything else rises at once. Knows nothing of HTTP."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from everstep.errors import Abandoned, CoordinatorUnreachable, TemporaryError
from everstep.waiting import SAID_AFTER_S

T = TypeVar("T")

FIRST_PAUSE_S = 0.02
LONGEST_PAUSE_S = 1.0


def patiently(
    call: Callable[[], T],
    deadline_s: float,
    *,
    stop: threading.Event | None = None,
    gave_up: type[TemporaryError] = CoordinatorUnreachable,
    hint: str = "is the coordinator running, and can this machine reach it?",
    say: Callable[[str], None] | None = None,
) -> T:
    """Call until it answers. The call must be idempotent: one whose answer was lost is made again. A failure may say
    how long to wait. `say`: gets one line about the failure, once it has lasted for some seconds.

    Raises `gave_up` after `deadline_s` of failures, Abandoned as soon as `stop` is set."""
    stop = stop or threading.Event()
    started = time.monotonic()
    for attempt in range(1 << 30):
        if stop.is_set():
            raise Abandoned(f"abandoned after {time.monotonic() - started:.1f} s", code="wait-abandoned")
        try:
            return call()
        except TemporaryError as failure:
            passed_s = time.monotonic() - started
            if say is not None and passed_s > SAID_AFTER_S:
                say(f"still trying: {failure.message}")
                say = None
            pause_s = max(decide_pause(attempt, random.random()), failure.wait_s)
            if passed_s + pause_s > deadline_s:
                problem = f"gave up after {passed_s:.1f} s and {attempt + 1} tries: {failure.message}"
                raise gave_up(problem, hint=hint, code="retries-exhausted") from failure
            stop.wait(pause_s)
    raise AssertionError("unreachable")


def decide_pause(attempt: int, chance: float) -> float:
    """Doubling up to a cap, then between half and all of it, so that many workers do not ask at the same moment."""
    return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(attempt, 16)) * (0.5 + 0.5 * chance)
