"""Learn that we are asked to end, and choose the moment."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def asked_to_end() -> Iterator[threading.Event]:
    """An event that SIGTERM and SIGINT set. To be called in the main thread."""
    asked = threading.Event()

    def handle(_number: int, _frame: FrameType | None) -> None:
        asked.set()

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
