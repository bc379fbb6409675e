"""What a person sees while a job runs: workers' output with their names, one line per event, a progress line.

Everything is printed by one thread of its own: a stopped terminal holds up neither the agent nor the workers."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from everstep.board import read_board
from everstep.launcher.logs import Follower

SETTLED = "regroup.settled"
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
        self._events: Follower | None = None
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

    def follow_events(self, path: Path) -> None:
        """A line for each of the events that people want to know about."""
        path.touch(mode=0o600)
        self._events = Follower(path)

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
        self._hear()
        said = [self._lines.popleft() for _ in range(len(self._lines))]
        lines = []
        for worker, follower in list(self._followers.items()):
            lines += [f"[{worker}] {line}" for line in follower.new_lines()]
        self._write(lines + said)  # a worker's last words, then that it ended
        if self._is_terminal:
            self._draw(self._pace.line(self.num_steps, time.monotonic(), self._generation))

    def _hear(self) -> None:
        for event in map(json.loads, self._events.new_lines() if self._events else []):
            if (line := event_line(event)) is not None:
                self.say(line)
            if event["event"] == SETTLED:
                self._generation = f"generation {event['generation']} of {event['size']}"

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


def event_line(event: Mapping[str, Any]) -> str | None:
    """What a person reads of an event; None if it is for machines only."""
    name, is_from_coordinator = event["event"], "job" in event
    if name == SETTLED and event["rank"] == 0:
        return f"generation {event['generation']} trains with {event['size']} workers from step {event['step']}"
    if not is_from_coordinator:
        return None  # workers and agents see the same things; once is enough
    if name == "generation.formed":
        return str(event["reason"])
    if name == "generation.closed":
        return f"generation {event['generation']} closed: {event['reason']}"
    if name == "worker.lost":
        return f"{event['worker']} is lost: {event['reason']}"
    return None


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
