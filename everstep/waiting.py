"""The one way to wait for something that cannot notify us: look until it is there, with a deadline.

After a few seconds it says once what it waits for. Failed calls are retried by retry.py."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

log = logging.getLogger("everstep")

T = TypeVar("T")

SAID_AFTER_S = 3.0


def wait_until(
    look: Callable[[], T],
    timeout_s: float,
    what: str | Callable[[], str],
    *,
    say: Callable[[str], None] = log.info,
    pause_s: float = 0.05,
    longest_pause_s: float = 0.0,
) -> T:
    """Look until the answer is true, or the time is up: the last answer. `what` completes "waiting for …"; a function
    is called when the sentence is due. Pauses grow up to `longest_pause_s`, if that is given."""
    began, is_said = time.monotonic(), False
    while not (found := look()) and (passed_s := time.monotonic() - began) < timeout_s:
        if not is_said and passed_s > SAID_AFTER_S:
            is_said = True
            say(f"waiting for {what if isinstance(what, str) else what()}")
        time.sleep(min(pause_s, timeout_s - passed_s))
        pause_s = max(pause_s, min(longest_pause_s, 1.5 * pause_s))
    return found
