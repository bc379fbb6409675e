"""The last line of a benchmark: its report as JSON, also if the benchmark is stopped before its end."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

Report = Callable[[], Mapping[str, Any]]


@contextmanager
def last_line(report: Report) -> Iterator[None]:
    """Print the report at the end of the block. After SIGTERM, Ctrl-C or an error, the line says what was measured so
    far, and has `"is_partial": true`."""

    def stop(number: int, frame: FrameType | None) -> None:
        """Write the line before processes are ended: who sent SIGTERM may not wait for that."""
        signal.signal(number, signal.SIG_IGN)
        os.write(sys.stdout.fileno(), f"{_partial(report)}\n".encode())
        raise _Stopped(number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    except _Stopped as stopped:
        raise SystemExit(128 + stopped.number) from None
    except BaseException:
        print(_partial(report), flush=True)
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    print(json.dumps(report()), flush=True)


class _Stopped(BaseException):
    """A signal asked for the end. Nothing but `last_line` handles it."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by signal {number}")
        self.number = number


def _partial(report: Report) -> str:
    return json.dumps({**report(), "is_partial": True})
