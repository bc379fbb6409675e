"""A peer's process that is kept between measurements: it is asked by a line, and answers with a line of JSON.

A peer that ends, or that does not answer in time, is an error with its last words. Nothing of it is left running: it
has a process group of its own."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

END_S = 30.0
LAST_WORDS = 2000


class PeerFailed(RuntimeError):
    """The peer ended, or did not answer in time."""


class KeptPeer:
    """Ready once it is made: the peer has said so."""

    def __init__(self, name: str, command: Sequence[str | Path], ready_s: float, answer_s: float) -> None:
        self._name, self._answer_s = name, answer_s
        self._is_late = False
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,
        )
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        try:
            self._answer(ready_s)
        except BaseException:
            self.close()
            raise

    def search(self) -> dict[str, Any]:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended: its answer says so
            self._process.stdin.write("go\n")
            self._process.stdin.flush()
        return self._answer(self._answer_s)

    def close(self) -> None:
        """Let it end by itself for a while, then end all of its group."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0 if self._is_late else END_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def _answer(self, timeout_s: float) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=timeout_s)
        except queue.Empty:
            self._is_late = True
            raise PeerFailed(f"{self._name} did not answer within {timeout_s:g} s{self._last_words()}") from None
        if not line:
            raise PeerFailed(f"{self._name} ended with {self._process.wait(END_S)}{self._last_words()}")
        found: dict[str, Any] = json.loads(line)
        return found

    def _last_words(self) -> str:
        size = os.fstat(self._log.fileno()).st_size
        said = os.pread(self._log.fileno(), LAST_WORDS, max(0, size - LAST_WORDS)).decode(errors="replace").strip()
        return f":\n{said}" if said else ""
