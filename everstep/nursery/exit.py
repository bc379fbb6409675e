"""A fork of the nursery ends as python ends, but does not take apart the interpreter and what came with the fork: most
of torch, which it shares with others. That takes longer than everything else that an end does, and copies a hundred
megabytes to free them.

Threads, exit handlers, the script's own objects, buffers and exit code are treated as ever; while a daemon thread
still runs, nothing is taken apart under it. An unhandled interrupt ends it by the signal itself, after all else, so
that a shell sees it too."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import io
import os
import signal
import sys
import threading
import traceback
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

_BUFFERED = (io.BufferedWriter, io.BufferedRandom, io.TextIOWrapper)
_UNFLUSHED = 120  # as python says it

_shared: set[str] = set()  # names of modules that came with the fork
_is_interrupted = False


def spare_what_is_here() -> None:
    """All that is imported by now stays as it is to the end of every fork; so do its finalizers: torch has hundreds,
    and what the nursery has opened, it closes itself."""
    _shared.update(sys.modules)
    _shared.discard("__main__")
    for each in list(getattr(weakref.finalize, "_registry", ())):
        each.atexit = False


def spare_libraries() -> None:
    """The destructors of the libraries that are loaded by now are not called; those that come later have their turn."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "on_exit") and hasattr(libc, "__cxa_atexit"):  # glibc; the last registered is called first
        libc.on_exit(libc._exit, None)  # with the exit code
        libc.__cxa_atexit(libc.fflush, None, None)  # all of C's own buffers


def note_interrupt() -> None:
    global _is_interrupted
    _is_interrupted = True


def end_with(asked: SystemExit | None) -> None:
    """End this process. Never returns."""
    code = _code_of(asked)
    del asked
    _try(threading._shutdown)  # type: ignore[attr-defined]  # waits for threads, as every end of python does
    _try(atexit._run_exitfuncs)
    is_flushed = _flush_streams()
    if threading.active_count() == 1:
        _try(_take_apart)
    _flush_files()
    is_flushed = _flush_streams() and is_flushed
    if _is_interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    # By a door that keeps the lock of the interpreter: no other thread runs from here on.
    ctypes.PyDLL(None).exit(code if is_flushed else _UNFLUSHED)


def _code_of(asked: SystemExit | None) -> int:
    told: Any = None if asked is None else asked.code
    if told is None:
        return 0
    if isinstance(told, int):
        return told & 0xFF
    _flush_streams()
    print(told, file=sys.stderr)
    return 1


def _try(act: Callable[[], object]) -> bool:
    try:
        act()
        return True
    except BaseException as error:  # no one is left to handle it
        print(f"Exception ignored in: {act!r}", file=sys.stderr)
        traceback.print_exception(error)
        return False


def _flush_streams() -> bool:
    streams = [each for each in (sys.stdout, sys.stderr) if each is not None and not each.closed]
    return sum(not _try(each.flush) for each in streams) == 0


def _take_apart() -> None:
    """The script's own modules, the last one first, after those that nothing else holds."""
    sys.last_type = sys.last_value = sys.last_traceback = None
    if hasattr(sys, "last_exc"):
        sys.last_exc = None
    own = [weakref.ref(sys.modules.pop(name)) for name in list(sys.modules) if _is_own(name)]
    gc.collect()
    for each in reversed(own):
        if (module := each()) is not None:
            _clear(module)


def _is_own(name: str) -> bool:
    # By its type: some bindings put objects there that pretend to be modules.
    return name not in _shared and issubclass(type(sys.modules[name]), ModuleType)


def _clear(module: ModuleType) -> None:
    """As python does: names with one underscore first."""
    names = vars(module)
    for is_private in (True, False):
        for name in list(names):
            if name != "__builtins__" and (name[:1] == "_" != name[1:2]) == is_private:
                names[name] = None


def _flush_files() -> None:
    """Also those that a module holds which is not taken apart."""
    for each in gc.get_objects():
        if issubclass(type(each), _BUFFERED) and not each.closed:
            with contextlib.suppress(Exception):
                each.flush()
