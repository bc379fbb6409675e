"""Hear that we are asked to end, and go on until that suits us."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def asked_to_end() -> Iterator[threading.Event]:
    """Set by SIGTERM and SIGINT. From the main thread."""
    asked = threading.Event()

    def handle(_number: int, _frame: FrameType | None) -> None:
        asked.set()

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
