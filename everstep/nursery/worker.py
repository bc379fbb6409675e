"""What a fork of the nursery does to be what `python -u SCRIPT` or `python -u -m MODULE` would have been.

Environment, folder, files, signals, random numbers, `__main__`, tracebacks and exit code are those of a plain start.
Where that cannot be had, it makes one of itself by exec: same process, same number."""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import multiprocessing.process
import os
import random
import runpy
import signal
import sys
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType, TracebackType

from everstep import env
from everstep.nursery import exit
from everstep.nursery.programs import PythonProgram, python_program, read_early
from everstep.nursery.server import ForkedWorker

_PR_SET_NAME = 15
_NAME_BYTES = 15
_ARG_START, _ARG_END = 45, 46  # of /proc/PID/stat, counted after the name
_STACKS_SIGNAL = signal.SIGUSR2  # the agent asks for the stacks of all threads with it


def become(forked: ForkedWorker, *, environment: Mapping[str, str]) -> None:
    """`environment`: what the nursery has read early."""
    order = forked.order
    for place, descriptor in enumerate(forked.files, start=1):  # the nursery's own stdin is empty, too
        os.dup2(descriptor, place)
        os.close(descriptor)
    env.replace(order.environment)
    time.tzset()
    os.chdir(order.directory)
    program = python_program(order.command)
    if program is None or read_early(order.environment) != environment or not _can_run(program):
        os.execve(order.command[0], order.command, order.environment)
    _renew_randomness()
    gc.enable()
    faulthandler.register(_STACKS_SIGNAL, file=2, all_threads=True)
    sys.orig_argv = list(order.command)
    exit.spare_libraries()
    _set_title(order.environment.get(env.WORKER, "worker"), [program.name, *program.args])
    _run(program)


def _can_run(program: PythonProgram) -> bool:
    """Whether a plain start would find the same modules, and its program is of the kind that `_run` knows."""
    if not program.is_module and not _is_source(program.name):
        return False
    folder = _first_folder(program)
    return folder is None or not _is_shadowing(folder)


def _is_source(path: str) -> bool:
    is_archive = not path.endswith(".py") and zipfile.is_zipfile(path)
    return os.path.isfile(path) and not path.endswith(".pyc") and not is_archive


def _first_folder(program: PythonProgram) -> str | None:
    """What python puts first on its path."""
    if getattr(sys.flags, "safe_path", False):
        return None
    return os.getcwd() if program.is_module else os.path.dirname(os.path.realpath(program.name))


def _is_shadowing(folder: str) -> bool:
    """Whether it holds a module that a plain start would have imported in place of one that is imported here."""
    here = {entry.partition(".")[0] for entry in os.listdir(folder)}
    for name in here & sys.modules.keys():
        spec = PathFinder.find_spec(name, [folder])
        known: ModuleSpec | None = getattr(sys.modules[name], "__spec__", None)
        if spec is None or spec.origin is None or known is None:
            continue
        if known.origin is None or os.path.realpath(spec.origin) != os.path.realpath(known.origin):
            return True
    return False


def _renew_randomness() -> None:
    """Forks must not share random numbers and secrets that were drawn when a module was imported."""
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.seed()
    random.seed()
    if (numpy_random := sys.modules.get("numpy.random")) is not None:
        numpy_random.seed()
    multiprocessing.process.current_process().authkey = os.urandom(32)
    # For spawned children, which import a `__main__` that was given by a relative path.
    multiprocessing.process.ORIGINAL_DIR = os.getcwd()  # type: ignore[attr-defined]


def _set_title(worker: str, program: Sequence[str]) -> None:
    """What `ps`, `top` and `pgrep -f` show of it: `everstep w1: train.py`, not how the nursery was started. Written
    over the memory that the kernel reads a process's command line from; longer titles are cut to its size."""
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


def _run(program: PythonProgram) -> None:
    folder = _first_folder(program)
    if folder is not None:
        sys.path.insert(0, folder)
    main = ModuleType("__main__")
    main.__dict__.update(__builtins__=sys.modules["builtins"], __annotations__={})
    sys.modules["__main__"] = main
    if program.is_module:
        sys.argv = ["-m", *program.args]
        run_module = runpy._run_module_as_main  # type: ignore[attr-defined]  # what `python -m` itself calls
        _as_top_level(lambda: run_module(program.name))
    else:
        sys.argv = [program.name, *program.args]
        _as_top_level(lambda: _run_script(program.name, main))


def _run_script(path: str, main: ModuleType) -> None:
    path = path if os.path.isabs(path) else os.path.join(os.getcwd(), path)
    main.__dict__.update(__file__=path, __cached__=None, __loader__=SourceFileLoader("__main__", path))
    exec(compile(Path(path).read_bytes(), path, "exec", dont_inherit=True), main.__dict__)


def _as_top_level(run: Callable[[], None]) -> None:
    """Run it; an unhandled exception ends the process as it ends python, without our frames in sight."""
    try:
        run()
    except SystemExit:
        raise
    except BaseException as error:
        trace = _without_ours(error.__traceback__)
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error.with_traceback(trace), trace
        if sys.version_info >= (3, 12):
            sys.last_exc = error
        sys.excepthook(type(error), error, trace)
        if isinstance(error, KeyboardInterrupt):
            exit.note_interrupt()
        sys.exit(1)


def _without_ours(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace
