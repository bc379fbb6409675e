"""What `ps`, `top` and `pgrep -f` show of a forked worker: `everstep w1: train.py`, not how the nursery was started.

Written over the memory that the kernel reads a process's command line from; longer titles are cut to its size."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path

_PR_SET_NAME = 15
_NAME_BYTES = 15
_ARG_START, _ARG_END = 45, 46  # of /proc/PID/stat, counted after the name


def set_title(worker: str, program: Sequence[str]) -> None:
    title = os.fsencode(f"everstep {worker}: {' '.join(program)}")
    ctypes.CDLL(None).prctl(_PR_SET_NAME, os.fsencode(f"everstep {worker}")[:_NAME_BYTES], 0, 0, 0)
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    except OSError:  # no /proc: then there is no `ps` either
        return
    start, end = int(fields[_ARG_START]), int(fields[_ARG_END])
    if end > start > 0:  # the kernel says 0 to a process without the right to know
        room = end - start
        ctypes.memmove(start, title[: room - 1].ljust(room, b"\0"), room)
