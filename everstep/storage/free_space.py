"""Free the space of a file's beginning and leave its length and the rest alone: a hole, by Linux's fallocate.

The file may be open for appending elsewhere. A file system without holes keeps the bytes; nothing is lost."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_KEEP_SIZE, _PUNCH_HOLE = 0x01, 0x02


def free_beginning(path: Path, num_bytes: int) -> bool:
    """Whether the file system did it. The freed bytes read as zeros from now on."""
    if num_bytes <= 0:
        return True
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fallocate = ctypes.CDLL(None, use_errno=True).fallocate64
        fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
        done: int = fallocate(descriptor, _PUNCH_HOLE | _KEEP_SIZE, 0, num_bytes)
        return done == 0
    except AttributeError:  # a C library without it
        return False
    finally:
        os.close(descriptor)
