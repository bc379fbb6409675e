"""What a person sees while a job runs: workers' output with their names, one line per event, a progress line.

Everything is printed by one thread of its own: a stopped terminal holds up neither the agent nor the workers."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import TextIO

from everstep.board import read_board
from everstep.launcher.logs import Follower
from everstep.wire import JobView

_TICK_S = 0.05


class Display:
    def __init__(self, stream: TextIO | None = None, *, is_quiet: bool = False) -> None:
        self._stream = stream or sys.stdout
        self._is_quiet = is_quiet
        self._is_terminal = self._stream.isatty()
        self._began = time.monotonic()
        self._lines: deque[str] = deque()
        self._followers: dict[str, Follower] = {}
        self._boards: dict[str, Path] = {}
        self._pace = _Pace()
        self._generation = ""
        self._progress = ""
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._print, name="display", daemon=True)

    def __enter__(self) -> Display:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Print what is left, then nothing more."""
        self._is_closing.set()
        self._thread.join(5.0)  # longer only if the terminal is stopped

    def say(self, line: str) -> None:
        """One event, for people."""
        self._lines.append(f"everstep: {line}")

    def follow(self, worker: str, log: Path, board: Path) -> None:
        self._boards[worker] = board
        if not self._is_quiet:
            self._followers[worker] = Follower(log)

    def show(self, view: JobView) -> None:
        """A line when the generation changed since the last view."""
        members = [worker.worker for worker in sorted(view.workers, key=lambda w: w.rank) if worker.status == "member"]
        if view.generation == 0:
            return
        state = "closed" if view.is_closed else f"formed: {' '.join(members)}"
        line = f"generation {view.generation} {state}"
        if line != self._generation:
            self._generation = line
            self.say(f"{line} ({view.reason})" if view.reason else line)

    @property
    def num_steps(self) -> int:
        return max((read_board(board).step for board in list(self._boards.values())), default=0)

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began

    def _print(self) -> None:
        while not self._is_closing.wait(_TICK_S):
            self._tick()
        self._tick()
        for worker, follower in self._followers.items():
            self._write([f"[{worker}] {line}" for line in follower.last_lines()])
        self._draw("")

    def _tick(self) -> None:
        said = [self._lines.popleft() for _ in range(len(self._lines))]
        lines = []
        for worker, follower in list(self._followers.items()):
            lines += [f"[{worker}] {line}" for line in follower.new_lines()]
        self._write(lines + said)  # a worker's last words, then that it ended
        if self._is_terminal:
            self._draw(self._pace.line(self.num_steps, time.monotonic(), self._generation))

    def _write(self, lines: list[str]) -> None:
        if not lines:
            return
        progress = self._progress
        self._draw("")
        self._stream.write("\n".join(lines) + "\n")
        self._draw(progress)
        self._stream.flush()

    def _draw(self, progress: str) -> None:
        if progress == self._progress:
            return
        self._progress = progress
        self._stream.write(f"\r\x1b[2K{progress}")
        self._stream.flush()


class _Pace:
    """Steps per second over the last seconds."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque(maxlen=200)

    def line(self, num_steps: int, now: float, generation: str) -> str:
        self._seen.append((now, num_steps))
        began, first = self._seen[0]
        if num_steps == 0 or now - began < 0.5:
            return self._shown(num_steps, None, generation)
        return self._shown(num_steps, (num_steps - first) / (now - began), generation)

    @staticmethod
    def _shown(num_steps: int, pace: float | None, generation: str) -> str:
        if num_steps == 0:
            return ""
        parts = [f"step {num_steps}", f"{pace:.1f} steps/s" if pace is not None else "", generation]
        return " · ".join(part for part in parts if part)
