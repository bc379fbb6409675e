"""Results of a trial whose script does not use Everstep: lines that it prints, matched by the experiment's pattern.

Each match is a result: the metric is the pattern's group `metric`, else its first one; the length is its group `step`,
else the number of the match, from 1. The script is not notified. Once the search stops the trial, `stop` is called
with the reason, and the node ends the script, which is not a failure.

Files are read from their beginning. So a node that is started again reports the same results, which changes nothing.
A script that continues from its own checkpoint should print its steps: counted matches would begin at 1 again. A thread
and a connection of its own; while the coordinator is away, it tries again."""

from __future__ import annotations

import logging
import math
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from everstep.client.calls import Coordinator
from everstep.errors import Abandoned, EverstepError
from everstep.job_file.metric_line import read_metric_line
from everstep.launcher.worker_files import WorkerFiles
from everstep.retry import patiently
from everstep.wire.bounds import MAX_INT
from everstep.wire.metrics import to_value
from everstep.wire.trials import STOP, WAIT, TargetRequest, TrialResult

log = logging.getLogger("everstep")
T = TypeVar("T")

LOOK_S = 0.1
_HELD_S = 5.0
_READ_BYTES = 1 << 20
_LONGEST_LINE = 1 << 16
_LINE_ENDS = re.compile(rb"[\r\n]")  # a progress bar draws over its line


def find_result(pattern: re.Pattern[str], line: str, number: int) -> TrialResult | None:
    """`number`: of this match, if it is one. None: no match, or no numbers in it."""
    match = pattern.search(line)
    if match is None:
        return None
    names = pattern.groupindex
    step_at = names.get("step", 0)
    metric_at = names.get("metric") or next(at for at in range(1, pattern.groups + 1) if at != step_at)
    try:
        metric = float(match[metric_at])
        length = int(float(match[step_at])) if step_at else number
    except (TypeError, ValueError, OverflowError):
        return None
    return TrialResult(length=length, metric=to_value(metric), batches=0) if 0 <= length <= MAX_INT else None


@dataclass(kw_only=True)
class PrintedFile:
    path: Path
    at: int = 0
    rest: bytes = b""  # of a line without its end

    def lines(self, *, is_ended: bool) -> Iterator[str]:
        while data := _read(self.path, self.at):
            self.at += len(data)
            *whole, self.rest = _LINE_ENDS.split(self.rest + data)
            self.rest = self.rest[-_LONGEST_LINE:]
            yield from (each.decode(errors="replace") for each in whole)
        if is_ended and self.rest:
            yield self.rest.decode(errors="replace")
            self.rest = b""


@dataclass(kw_only=True)
class _Counted:
    files: list[PrintedFile] = field(default_factory=list)
    num_matches: int = 0


class PrintedResults:
    """Of all workers whose files are in a folder, those of an agent. Start it with `with`, before the agent."""

    def __init__(self, coordinator: Coordinator, pattern: str, folder: Path, stop: Callable[[str], None]) -> None:
        """Owns the coordinator's client, of the trial's job. `stop(reason)` is called once, in the thread."""
        self._coordinator, self._pattern, self._folder, self._stop = (
            coordinator,
            read_metric_line(pattern),
            folder,
            stop,
        )
        self.is_stopped = False  # the search has ended the trial: whatever the exit code, this is a good end
        self._workers: dict[str, _Counted] = {}
        self._heard_at = 0.0
        self._is_closing, self._has_given_up = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="printed results", daemon=True)

    def __enter__(self) -> PrintedResults:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.close(0.0)

    def close(self, patience_s: float) -> bool:
        """The workers have ended: report the rest, until the coordinator has been away for this long. False: it does
        not have all results. May be called again."""
        self._is_closing.set()
        self._heard_at = time.monotonic()
        while self._thread.is_alive() and (left_s := self._heard_at + patience_s - time.monotonic()) > 0:
            self._thread.join(left_s)
        is_delivered = not self._thread.is_alive()
        self._has_given_up.set()
        self._coordinator.close()
        return is_delivered

    # --- the thread ---

    def _run(self) -> None:
        is_last, wish, number = False, "", 0
        try:
            while not is_last:
                is_last = self._is_closing.wait(LOOK_S if wish != WAIT else 0.0)
                for result in self._found(is_last=is_last):
                    kept = self._ask(partial(self._coordinator.report_result, result))
                    wish, number = kept.wish, kept.number
                    if wish == STOP:  # a script that prints faster than this reads would never be stopped
                        break
                if wish == WAIT and not is_last:
                    wish = self._wait_for_decision(number)
                if wish == STOP:
                    self.is_stopped = True
                    self._stop("stopped by the search")
                    return
        except Abandoned:
            return
        except EverstepError as error:
            log.warning("stopped reading printed results: %s", error.message)

    def _wait_for_decision(self, number: int) -> str:
        """A little: further lines may come meanwhile."""
        request = TargetRequest(seen=number, wait_s=min(_HELD_S, 1.0))
        return self._ask(partial(self._coordinator.target, request)).wish

    def _found(self, *, is_last: bool) -> Iterator[TrialResult]:
        for path in sorted(self._folder.glob("*/stdout.log")):
            files = WorkerFiles(directory=path.parent)
            if path.parent.name not in self._workers:
                both = [PrintedFile(path=each) for each in (files.stdout, files.stderr)]
                self._workers[path.parent.name] = _Counted(files=both)
        for worker in self._workers.values():
            for file in worker.files:
                for line in file.lines(is_ended=is_last):
                    if (result := find_result(self._pattern, line, worker.num_matches + 1)) is not None:
                        worker.num_matches += 1
                        yield result

    def _ask(self, call: Callable[[], T]) -> T:
        answer = patiently(call, math.inf, stop=self._has_given_up)
        self._heard_at = time.monotonic()
        return answer


def _read(path: Path, start: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(start)
            return file.read(_READ_BYTES)
    except OSError:  # not there yet, or any more
        return b""
