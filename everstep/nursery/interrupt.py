"""An unhandled interrupt ends python by the signal itself, after all else, so that a shell sees it too.

Python does this for its own top level, which a fork's program is not; in some releases not even for all of that."""

from __future__ import annotations

import atexit
import os
import signal
import sys

_is_interrupted = False


def prepare() -> None:
    """Call it before anything else is registered: the first handler runs last."""
    atexit.register(_end)


def note() -> None:
    global _is_interrupted
    _is_interrupted = True


def _end() -> None:
    if _is_interrupted:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
