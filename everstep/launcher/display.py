"""What a person sees while a job runs: workers' output with their names, one line per event, a progress line.

Workers' stdout goes to stdout, everything else to stderr. Everything is printed by one thread of its own: a stopped
terminal holds up neither the agent nor the workers."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everstep.ipc.progress_page import read_board
from everstep.launcher.console import Console
from everstep.launcher.logs import FilteredCopy, Follower
from everstep.launcher.progress import (
    SETTLED,
    WAITING,
    GenerationLine,
    Goodput,
    JobProgress,
    ScriptProgress,
    StepPace,
    event_line,
    progress_line,
)
from everstep.launcher.shown_streams import STDERR, STDOUT, Shown
from everstep.launcher.worker_files import WorkerFiles
from everstep.record.log_masks import Masks
from everstep.storage import private_file

log = logging.getLogger("everstep")

_TICK_S = 0.05
_DRAW_S = 0.2  # numbers that change faster cannot be read
_PATIENCE_S = 5.0  # longer only if the terminal is stopped


@dataclass(frozen=True, kw_only=True, slots=True)
class _Stream:
    """One stream of one worker, as far as it is followed."""

    worker: str
    number: int  # STDOUT or STDERR
    is_shown: bool
    follower: Follower


class JobDisplay:
    def __init__(
        self,
        console: Console | None = None,
        *,
        shown: Shown | None = None,
        copies: Mapping[int, FilteredCopy] | None = None,
    ) -> None:
        """`copies`: by stream, where matching lines go as well."""
        self._console, self._shown, self._copies = console or Console(), shown or Shown(), copies or {}
        self._began = time.monotonic()
        self._said: deque[str] = deque()
        self._streams: list[_Stream] = []
        self._boards: dict[str, Path] = {}
        self._is_alive: dict[str, Callable[[], bool]] = {}  # of those not yet seen dead
        self._events: Follower | None = None
        self._pace, self._generation = StepPace(), GenerationLine()
        self._goodput, self._training = Goodput(), ScriptProgress()
        self._masks = Masks()
        self._repeat: Callable[[str], None] = lambda line: None
        self._waits_for: str | None = None  # the last line about workers that wait
        self._drawn_at = float("-inf")
        self._flushes: deque[threading.Event] = deque()
        self._is_closing = False
        self._is_wanted = threading.Event()  # now, not at the next tick
        self._thread = threading.Thread(target=self._print, name="display", daemon=True)

    def __enter__(self) -> JobDisplay:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def flush(self) -> None:
        """Return when all that was said and written before is printed."""
        is_printed = threading.Event()
        self._flushes.append(is_printed)
        self._is_wanted.set()
        if self._thread.is_alive():
            is_printed.wait(_PATIENCE_S)

    def close(self) -> None:
        """Print what is left, then nothing more."""
        self._is_closing = True
        self._is_wanted.set()
        self._thread.join(_PATIENCE_S)

    def hide(self, masks: Masks) -> None:
        """Show none of these values."""
        self._masks = masks

    def masked(self, text: str) -> str:
        return self._masks.apply_text(text)

    def repeat_to(self, repeat: Callable[[str], None]) -> None:
        """Pass on what is said from now on."""
        self._repeat = repeat

    def say(self, line: str) -> None:
        """One event, for people; also after `close`."""
        self._repeat(line)
        self._said.append(f"everstep: {line}")
        if self._is_closing and not self._thread.is_alive():
            self._console.print(err=[self._said.popleft()])

    def follow(self, worker: str, local_rank: int, files: WorkerFiles, is_alive: Callable[[], bool]) -> None:
        """Show a worker whose log files exist, as long as it is alive."""
        self._boards[worker] = files.board
        for number, path in ((STDOUT, files.stdout), (STDERR, files.stderr)):
            is_shown = self._shown.has(local_rank, number)
            if is_shown or number in self._copies:
                stream = _Stream(worker=worker, number=number, is_shown=is_shown, follower=Follower(path))
                self._streams.append(stream)
        self._is_alive[worker] = is_alive

    def follow_events(self, path: Path) -> None:
        """A line for each of the events from now on that people want to know about."""
        with suppress(OSError):  # a read-only disk: no event is worth the node, and the file may be there
            private_file.append(path).close()
        with suppress(OSError):
            self._events = Follower(path, is_from_end=True)

    @property
    def num_steps(self) -> int:
        return max((read_board(board).step for board in list(self._boards.values())), default=0)

    @property
    def num_steps_done(self) -> int:
        """By this run: one that continues from a checkpoint, or joins others, begins later."""
        return max(0, self.num_steps - (self._training.first_step or 0))

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began

    @property
    def good_s(self) -> float | None:
        """Time that went into steps (progress.Goodput); None if no step was seen."""
        return self._goodput.good_s

    def _print(self) -> None:
        while not self._is_closing:
            self._is_wanted.wait(_TICK_S)
            self._is_wanted.clear()
            asked = [self._flushes.popleft() for _ in range(len(self._flushes))]
            try:
                self._tick(ended=[worker for worker, is_alive in list(self._is_alive.items()) if not is_alive()])
            except Exception as error:  # one line of many; the next ones are shown again
                log.warning("something cannot be shown", exc_info=error)
            for is_printed in asked:
                is_printed.set()
        self._tick(ended=list(self._is_alive))
        self._console.draw("")

    def _tick(self, *, ended: list[str]) -> None:
        for worker in ended:
            del self._is_alive[worker]
        self._hear()
        said = [self._said.popleft() for _ in range(len(self._said))]
        lines: dict[int, list[str]] = {STDOUT: [], STDERR: []}
        for stream in list(self._streams):
            is_over = stream.worker in ended
            if is_over:
                self._streams.remove(stream)
            lines[stream.number] += self._lines_of(stream, is_over=is_over)
        self._console.print(out=lines[STDOUT], err=lines[STDERR] + said)  # a worker's last words, then that it ended
        if self._console.is_terminal and self._is_alive and time.monotonic() - self._drawn_at > _DRAW_S:
            self._draw()

    def _lines_of(self, stream: _Stream, *, is_over: bool) -> list[str]:
        new = stream.follower.last_lines() if is_over else stream.follower.new_lines()
        lines = [f"[{stream.worker}] {self.masked(line)}" for line in new]
        if stream.number in self._copies:
            self._copies[stream.number].add(lines)
        return lines if stream.is_shown else []

    def _draw(self) -> None:
        self._drawn_at = now = time.monotonic()
        num_steps = self.num_steps
        pace = self._pace.at(num_steps, now)
        progress = JobProgress(
            num_steps=num_steps,
            steps_per_s=pace,
            training=self._training.shown,
            left_s=self._training.left_s(num_steps, pace),
            alive=tuple(self._is_alive),
            generation=self._generation.shown,
            elapsed_s=now - self._began,
        )
        self._console.draw(progress_line(progress, width=self._console.width, dot=self._console.dot))

    def _hear(self) -> None:
        for event in self._new_events():
            line = event_line(event, is_log=not self._console.is_terminal)
            is_repeated = event["event"] == WAITING and line == self._waits_for  # each worker of a node says so
            if event["event"] in (WAITING, SETTLED):
                self._waits_for = line if event["event"] == WAITING else None
            if line is not None and not is_repeated:
                self.say(line)
            self._generation.hear(event)
            self._goodput.hear(event)
            self._training.hear(event, self._console.dot)

    def _new_events(self) -> Iterator[Mapping[str, Any]]:
        for line in self._events.new_lines() if self._events else []:
            try:
                yield json.loads(line)
            except ValueError:  # a script may write to the file too
                continue
