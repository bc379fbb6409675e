"""The failed saves of this process: each kind of failure is logged once, and all of them at the end.

A process that tried to save and never could ends with exit code 74, unless an exception has reached its script before:
a run without any result must not look like a success. Python offers only os._exit to change the code of an interpreter
that is ending; by then the script's own exit handlers have run and all output is flushed."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from collections import Counter

from everstep.errors import CheckpointFailed
from everstep.events import emit

EXIT_CODE = 74  # EX_IOERR

log = logging.getLogger("everstep.checkpoint")

_ledgers: list[FailedSaves] = []
_owner = 0  # the process that the exit handler belongs to


class FailedSaves:
    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.num_written = 0
        self.durable_step: int | None = None
        self._failures: Counter[str] = Counter()
        self._last: dict[str, CheckpointFailed] = {}
        self._was_raised = False
        self._lock = threading.Lock()
        _register(self)

    def wrote(self, step: int, seconds: float, size_bytes: int) -> None:
        with self._lock:
            self.num_written += 1
            self.durable_step = step
        log.info("checkpoint of step %d: %.1f MB in %.2f s", step, size_bytes / 1e6, seconds)
        emit("checkpoint.written", step=step, bytes=size_bytes, seconds=seconds)

    def failed(self, step: int, failure: CheckpointFailed) -> None:
        with self._lock:
            self._failures[failure.kind] += 1
            self._last[failure.kind] = failure
            is_first = self._failures[failure.kind] == 1
        if is_first:
            log.error("%s\n  Training continues; failures of this kind are not logged again until the end.", failure)
        emit("checkpoint.failed", step=step, kind=failure.kind, reason=failure.message)

    def raised(self) -> None:
        """An exception with the failure has reached the script, which decides how to end."""
        self._was_raised = True

    @property
    def has_nothing(self) -> bool:
        return bool(self._failures) and self.num_written == 0 and not self._was_raised

    def summary(self) -> str:
        """One line per kind of failure; empty if there was none."""
        with self._lock:
            return "\n".join(
                f"{count} of the saves to {self.uri} failed; the last failure: {self._last[kind].message}"
                for kind, count in self._failures.items()
            )


def _register(ledger: FailedSaves) -> None:
    global _owner
    if _owner != os.getpid():  # a forked child reports only its own saves
        _owner = os.getpid()
        _ledgers.clear()
        atexit.unregister(_end)
        atexit.register(_end)
    _ledgers.append(ledger)


def _end() -> None:
    if _owner != os.getpid():
        return
    for ledger in _ledgers:
        if summary := ledger.summary():
            log.error("%s", summary)
    if not any(ledger.has_nothing for ledger in _ledgers):
        return
    log.error("no checkpoint could be written: exit code %d", EXIT_CODE)
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):  # closed or missing
            pass
    os._exit(EXIT_CODE)
