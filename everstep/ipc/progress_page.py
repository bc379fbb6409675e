"""A worker's progress board: a little shared memory that its agent can read even when the worker is dead.

Written without a system call at every change of phase. One writer; a reader may see the fields of two
neighboring moments mixed, which is harmless here. Knows nothing of torch."""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from everstep.ipc import lifeline
from everstep.storage import private_file
from everstep.wire import COMPUTING, OUTSIDE, WAITING

_LAYOUT = struct.Struct("<QqQdddQ")  # step, micro-batch, phase, since, longest step, longest wait, bytes of the state
_LIFELINE, _IS_HELD = 64, 128  # where the lock is, and the byte that says that it is held
_HAS_RAISED = _IS_HELD + 1  # the byte that says that the script died of an exception of its own
_IS_SHARED = _HAS_RAISED + 1  # the byte that says that any other worker would do what this one does now
_SIZE = _IS_SHARED + 1
_PHASES = (OUTSIDE, COMPUTING, WAITING)


@dataclass(frozen=True, slots=True)
class WorkerProgress:
    """In the order of _LAYOUT."""

    step: int = 0  # committed steps
    micro_batch: int = -1  # the micro-batch being computed; -1: none
    phase: str = OUTSIDE
    since: float = 0.0  # CLOCK_MONOTONIC
    longest_step_s: float = 0.0
    longest_wait_s: float = 0.0
    state_bytes: int = 0  # what a newcomer would be sent; 0: not known


class ProgressPage:
    """The writing side. Without a file it is plain memory: the same calls, without a reader."""

    def __init__(self, path: str | Path | None = None) -> None:
        if path is None:
            self._memory = mmap.mmap(-1, _SIZE)
        else:
            descriptor = _allocated(path)
            self._memory = mmap.mmap(descriptor, _SIZE)
            # The main thread's end is the process's; any other's is nothing.
            is_main = threading.current_thread() is threading.main_thread()
            if is_main and lifeline.hold(descriptor, _SIZE, _LIFELINE):
                self._memory[_IS_HELD] = 1
            os.close(descriptor)
        self._longest_step_s = 0.0
        self._longest_wait_s = 0.0
        self._state_bytes = 0
        self._step_started: float | None = None
        self._now = WorkerProgress(since=time.monotonic())
        self.write(step=0, micro_batch=-1, phase=OUTSIDE)

    def write(self, *, step: int, micro_batch: int, phase: str) -> None:
        before, now = self._now, time.monotonic()
        if before.phase == WAITING and phase == COMPUTING:  # for the sum; all other waiting ends outside of a step
            self._longest_wait_s = max(self._longest_wait_s, now - before.since)
        if self._step_started is not None and step != before.step:
            self._longest_step_s = max(self._longest_step_s, now - self._step_started)
            self._step_started = None
        if phase == COMPUTING and self._step_started is None:
            self._step_started = now
        others = self._longest_step_s, self._longest_wait_s, self._state_bytes
        _LAYOUT.pack_into(self._memory, 0, step, micro_batch, _PHASES.index(phase), now, *others)
        self._now = WorkerProgress(step, micro_batch, phase, now, *others)

    def note_state_bytes(self, state_bytes: int) -> None:
        """Shown with the next change of phase."""
        self._state_bytes = state_bytes

    def note_raised(self) -> None:
        """The script dies of an exception that is not ours."""
        self._memory[_HAS_RAISED] = 1

    def note_shared(self, is_shared: bool) -> None:
        """What this worker does, also as rank 0, another does if it dies now."""
        self._memory[_IS_SHARED] = is_shared

    @property
    def progress(self) -> WorkerProgress:
        return self._now

    def close(self) -> None:
        self._memory.close()


def allocate(path: str | Path) -> None:
    """Before the worker is started: OSError if the disk has no room for it, which would kill the worker."""
    os.close(_allocated(path))


def _allocated(path: str | Path) -> int:
    descriptor = private_file.descriptor(path, os.O_RDWR)
    try:
        os.posix_fallocate(descriptor, 0, _SIZE)  # memory that the disk has no room for is SIGBUS
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def await_end(path: str | Path) -> bool:
    """Wait until the worker of this board begins to end; False, at once, if that cannot be heard. Holds its thread."""
    with open(path, "r+b") as file:
        memory = mmap.mmap(file.fileno(), _SIZE)
    return bool(memory[_IS_HELD]) and lifeline.await_release(memory, _LIFELINE)


def has_lifeline(path: str | Path) -> bool:
    return _flag(path, _IS_HELD)


def has_raised(path: str | Path) -> bool:
    """Whether the worker's script died of an exception of its own."""
    return _flag(path, _HAS_RAISED)


def is_shared(path: str | Path) -> bool:
    """Whether the worker was last at what another does if it dies."""
    return _flag(path, _IS_SHARED)


def _flag(path: str | Path, place: int) -> bool:
    try:
        return Path(path).read_bytes()[place : place + 1] == b"\x01"
    except OSError:
        return False


def read_board(path: str | Path) -> WorkerProgress:
    """What the worker last wrote; a board that is not yet written, or cannot be read, reads as nothing done."""
    try:
        raw = Path(path).read_bytes()
    except OSError:
        return WorkerProgress()
    if len(raw) < _LAYOUT.size:
        return WorkerProgress()
    step, micro_batch, phase, since, *others = _LAYOUT.unpack(raw[: _LAYOUT.size])
    if not since:  # allocated, but never written: by a script without an engine
        return WorkerProgress()
    return WorkerProgress(step, micro_batch, _PHASES[phase], since, *others)
