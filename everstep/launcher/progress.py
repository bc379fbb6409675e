"""The progress of a job, as a person reads it: the progress line, the pace, and the goodput.

Pure: facts and times in, text and numbers out."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SETTLED, WAITING = "regroup.settled", "worker.waiting"
SLOW, RECOVERED = "worker.slow", "worker.recovered"  # reported by rank 0 alone


@dataclass(frozen=True, kw_only=True, slots=True)
class JobProgress:
    num_steps: int
    steps_per_s: float | None  # None: not known yet
    alive: Sequence[str]  # this node's workers
    training: str = ""  # ScriptProgress.shown
    left_s: float | None = None  # None: not known
    generation: str  # GenerationLine.shown
    elapsed_s: float


def progress_line(now: JobProgress, *, width: int, dot: str = "·") -> str:
    """One line that fits: workers by name if there is room, else their number; then the least important parts go."""
    if not now.alive and not now.num_steps:
        return ""
    steps = now.training or (f"step {now.num_steps}" if now.num_steps else "")
    pace = f"{now.steps_per_s:.1f} steps/s" if now.num_steps and now.steps_per_s is not None else ""
    number = f"{len(now.alive)} worker{'s' if len(now.alive) != 1 else ''}"
    time = clock(now.elapsed_s) + (f", {clock(now.left_s)} left" if now.left_s is not None else "")
    for parts in (
        [steps, pace, now.generation, " ".join(now.alive) or number, time],
        [steps, pace, now.generation, number, time],
        [steps, pace, now.generation, number],
        [steps, now.generation],
        [steps or number],
    ):
        line = f" {dot} ".join(part for part in parts if part)
        if len(line) < width:
            return line
    return line[: max(0, width - 1)]


def clock(seconds: float) -> str:
    """61 → "1:01", 3661 → "1:01:01"."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class ScriptProgress:
    """Progress as the script's own trainer reports it: epoch, steps out of the total, loss."""

    def __init__(self) -> None:
        self.first_step: int | None = None  # of this run: a resumed one begins later
        self._num_steps: int | None = None
        self.shown = ""

    def hear(self, event: Mapping[str, Any], dot: str = "·") -> None:
        if event["event"] == SETTLED and self.first_step is None:
            self.first_step = event["step"]
        if event["event"] != "training.progress":
            return
        step, num_epochs, self._num_steps = event["step"], event.get("num_epochs"), event.get("num_steps")
        parts = [
            f"epoch {event['epoch'] + 1}" + (f"/{num_epochs}" if num_epochs else ""),
            f"step {step}" + (f"/{self._num_steps}" if self._num_steps else ""),
            "" if event.get("loss") is None else f"loss {event['loss']:.4g}",
        ]
        self.shown = f" {dot} ".join(part for part in parts if part)

    def left_s(self, num_steps: int, steps_per_s: float | None) -> float | None:
        if not self._num_steps or not steps_per_s:
            return None
        return max(0.0, (self._num_steps - num_steps) / steps_per_s)


class StepPace:
    """Steps per second over the last seconds."""

    def __init__(self, over_s: float = 10.0) -> None:
        self._over_s = over_s
        self._seen: deque[tuple[float, int]] = deque()

    def at(self, num_steps: int, now: float) -> float | None:
        if num_steps == 0:
            return None
        self._seen.append((now, num_steps))
        while now - self._seen[0][0] > self._over_s:
            self._seen.popleft()
        began, first = self._seen[0]
        return (num_steps - first) / (now - began) if now - began >= 0.5 else None


class Goodput:
    """The time that went into steps: from one commit to the next, if both are of the same generation.

    Left out: the start until the first commit, each regroup with the step that was redone in it, the end."""

    def __init__(self) -> None:
        self._last: tuple[int, int, float] | None = None  # step, generation, time
        self.good_s: float | None = None  # None: no step was seen

    def hear(self, event: Mapping[str, Any]) -> None:
        if event["event"] != "step.committed":
            return
        step, generation, now = event["step"], event.get("generation", 0), event["t"]
        self.good_s = self.good_s or 0.0
        if self._last is not None:
            last_step, last_generation, last = self._last
            if step <= last_step:  # another worker's word of the same step
                return
            if step == last_step + 1 and generation == last_generation:
                self.good_s += now - last
        self._last = (step, generation, now)


def event_line(event: Mapping[str, Any], *, is_log: bool = False) -> str | None:
    """What a person reads of an event; None if it is for machines only. `is_log`: later, from a file; `everstep logs`
    finds in it who had which rank."""
    name, is_from_coordinator = event["event"], "job" in event
    if name == SETTLED and event["rank"] == 0:
        who = f"; {event['worker']} is rank 0 of {event['size']}" if "worker" in event else ""
        workers = f"{event['size']} worker{'s' * (event['size'] != 1)}"
        return f"generation {event['generation']} trains with {workers} from step {event['step']}{who}"
    if name == SETTLED and is_log and "worker" in event:
        return f"{event['worker']} is rank {event['rank']} of {event['size']}"
    if name == WAITING:
        return f"waiting: {event['reason']}"
    if name in (SLOW, RECOVERED):
        return str(event["reason"])
    if not is_from_coordinator:
        return None  # workers and agents see the same things; once is enough
    if name == "generation.formed":
        return str(event["reason"])
    if name == "generation.closed":
        return f"generation {event['generation']} closed: {event['reason']}"
    if name == "worker.lost":
        return f"{event['worker']} is lost: {event['reason']}"
    return None


class GenerationLine:
    """What the progress line says of the generation."""

    def __init__(self) -> None:
        self._number = 0
        self.shown = ""

    def hear(self, event: Mapping[str, Any]) -> None:
        name = event["event"]
        if name not in (SETTLED, "generation.closed") or event["generation"] < self._number:
            return  # the last word of an old one may come late
        self._number = event["generation"]
        if name == SETTLED:
            self.shown = f"generation {self._number}"
        else:
            self.shown = f"generation {self._number} closed, regrouping"
