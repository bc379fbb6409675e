"""A fork ends as python ends, but does not free what it has from the nursery: most of torch, which it shares with
others. That takes longer than everything else that an end does, and copies a hundred megabytes to free them.

Threads, exit handlers, the script's own objects, buffers and exit code are treated as ever. An unhandled interrupt
ends it by the signal itself, after all else, so that a shell sees it too: Python does this for its own top level, which
a fork's program is not, and in some releases not even for all of that."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import io
import itertools
import os
import signal
import sys
from collections import deque

_BUFFERED = (io.BufferedWriter, io.BufferedRandom, io.TextIOWrapper)

_names: list[str] = []
_kept: list[object] = []
_is_interrupted = False


def prepare() -> None:
    """Before anything is imported: exit handlers that come later are called earlier, and may need all modules."""
    atexit.register(hide_leaks)
    atexit.register(_end_by_signal)
    # One call without a line of Python in it: no other thread gets a turn to import a module that was just removed.
    atexit.register(deque, map(sys.modules.pop, _names, itertools.repeat(None)), 0)
    atexit.register(_flush_files)


def note_interrupt() -> None:
    global _is_interrupted
    _is_interrupted = True


def _end_by_signal() -> None:
    if _is_interrupted:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)


def spare_modules() -> None:
    """All that is imported by now, the standard library aside, stays as it is to the end of every fork."""
    for name, module in sys.modules.items():
        if name != "__main__" and name.partition(".")[0] not in sys.stdlib_module_names:
            _names.append(name)
            _kept.append(module)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_kept))  # so that it is never freed


def hide_leaks() -> None:
    """nanobind, which binds triton, reports everything that is not freed at the end, in dozens of lines on C's own
    stderr: they would stand after, and hide, the error that ended a script. Here it is intended."""
    if not any(name.partition(".")[0] == "triton" for name in _names):
        return
    libc = ctypes.CDLL(None)
    libc.fopen.restype = ctypes.c_void_p
    with contextlib.suppress(ValueError):  # without glibc
        stderr = ctypes.c_void_p.in_dll(libc, "stderr")
        stderr.value = libc.fopen(b"/dev/null", b"w") or stderr.value


def _flush_files() -> None:
    """Also those that a module holds which will not be taken apart."""
    for each in gc.get_objects():
        if issubclass(type(each), _BUFFERED) and not each.closed:
            with contextlib.suppress(Exception):
                each.flush()


def spare_libraries() -> None:
    """The destructors of the libraries that are loaded by now are not called; those that come later have their turn."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "on_exit") and hasattr(libc, "__cxa_atexit"):  # glibc; the last registered is called first
        libc.on_exit(libc._exit, None)  # with the exit code
        libc.__cxa_atexit(libc.fflush, None, None)  # all of C's own buffers
