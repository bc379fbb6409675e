"""What a person sees of a fit: a live bar on a terminal or in a notebook, otherwise plain lines. All of it on stderr.

While the bar is shown, everything the script prints or logs appears above it. The display cannot end the training: if
the terminal goes away, drawing stops. Speed and ETA count the time spent in batches, not in validating or saving."""

from __future__ import annotations

import importlib.util
import logging
import math
import sys
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from everstep.pytorch.progress import BatchProgress
from everstep.pytorch.train_units import Epoch, Record, Seconds, TrainUnit

if TYPE_CHECKING:
    from rich.live import Live

_BAR_S = 0.25  # numbers that change faster cannot be read
_BOUNDARY_LINE_S = 1.0
_LINE_S = 10.0
_BAR_WIDTH = 24
_SPEED_OVER_S = 10.0  # rates are averages over the last seconds of training
_SPEED_GRAIN_S = _SPEED_OVER_S / 50

# --- where a fit is, in words. Pure. ---


@dataclass(frozen=True, kw_only=True, slots=True)
class FitStatus:
    progress: BatchProgress
    length: TrainUnit
    length_batches: int | None  # None: unknown
    loss: str = ""
    samples_per_s: float | None = None
    eta_s: float | None = None
    validation: str = ""  # the last one
    best: str = ""  # checkpoint
    doing: str = ""  # while it is not training

    @property
    def share(self) -> float:
        """The part of the length that is done."""
        if self.length_batches:
            return min(1.0, self.progress.batches / self.length_batches)
        return min(1.0, self.length.of(self.progress) / self.length.count)


def parts_of(status: FitStatus) -> list[str]:
    """["batch 100/937", "epoch 0", "loss 0.4213", "1,234 samples/s", "eta 0:01:10"], without what is unknown."""
    progress, length = status.progress, status.length
    total = f"/{status.length_batches}" if status.length_batches else ""
    epochs = f"/{length.value}" if isinstance(length, Epoch) else ""
    parts = [f"batch {progress.batches}{total}", f"epoch {progress.epochs}{epochs}"]
    if isinstance(length, Record):
        parts.append(f"record {progress.records:,}/{length.value:,}")
    if isinstance(length, Seconds):
        parts.append(f"{clock(progress.seconds)} of {clock(length.count)}")
    parts.append(status.loss)
    if status.samples_per_s is not None:
        rate = status.samples_per_s
        parts.append(f"{rate:,.0f} samples/s" if rate >= 10 else f"{rate:.1f} samples/s")
    if status.doing:
        parts.append(status.doing)
    elif status.eta_s is not None:
        parts.append(f"eta {clock(status.eta_s)}")
    return [part for part in parts if part]


def shown_loss(metrics: Mapping[str, Any]) -> str:
    """The metric to show while training: "loss" if there is one, otherwise the first that is a number."""
    numbers = {name: value for name, value in metrics.items() if is_number(value)}
    for name in ("loss", *numbers):
        if name in numbers:
            return f"{name} {number(float(numbers[name]))}"
    return ""


def shown_metrics(metrics: Mapping[str, Any]) -> str:
    """Those that are numbers: "accuracy 0.9312, loss 0.2145"."""
    return ", ".join(f"{name} {number(float(value))}" for name, value in metrics.items() if is_number(value))


def is_number(value: Any) -> bool:
    """Or a tensor or array that holds a single number."""
    if isinstance(value, bool):
        return False
    return isinstance(value, int | float) or (hasattr(value, "tolist") and getattr(value, "ndim", None) == 0)


def number(value: float) -> str:
    """Short, with the digits that matter: 0.4213, 12.35, 3.2e-05."""
    if not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e6:
        return str(int(value))
    if 1e-3 <= abs(value) < 1e6:
        return f"{value:,.4f}" if abs(value) < 10 else f"{value:,.2f}"
    return f"{value:.2e}"


def clock(seconds: float) -> str:
    """70 → "0:01:10"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"{f'{days}d ' if days else ''}{hours}:{minutes:02}:{rest:02}"


# --- how fast it is. Pure. ---


class _SpeedMark(NamedTuple):
    training_s: float = 0.0
    batches: int = 0
    samples: int = 0


class FitSpeed:
    def __init__(self) -> None:
        self._since: float | None = None  # when the batch under way began
        self._now = _SpeedMark()
        self._marks = deque([self._now])

    def skip_to(self, now: float) -> None:
        """The time since the last batch was not training."""
        self._since = now

    def batch(self, now: float, num_samples: int) -> None:
        """Count one more. `num_samples`: of all workers together."""
        passed_s = 0.0 if self._since is None else now - self._since
        training_s, batches, samples = self._now
        self._now = _SpeedMark(training_s + passed_s, batches + 1, samples + num_samples)
        if self._since is None:  # unknown when it began
            self._marks[0] = self._now
        self._since = now
        if self._now.training_s - self._marks[-1].training_s >= _SPEED_GRAIN_S:
            self._marks.append(self._now)
            while self._now.training_s - self._marks[1].training_s >= _SPEED_OVER_S:
                self._marks.popleft()

    @property
    def batches_per_s(self) -> float | None:
        """None: unknown."""
        return self._rate(self._now.batches - self._marks[0].batches)

    @property
    def samples_per_s(self) -> float | None:
        return self._rate(self._now.samples - self._marks[0].samples)

    def _rate(self, number: int) -> float | None:
        passed_s = self._now.training_s - self._marks[0].training_s
        return number / passed_s if passed_s > 0 else None

    def remaining_s(self, length: TrainUnit, length_batches: int | None, progress: BatchProgress) -> float | None:
        """Training time until the length is reached. None: unknown."""
        if isinstance(length, Seconds):
            return max(0.0, length.count - progress.seconds)
        if isinstance(length, Record) and self.samples_per_s:
            return max(0.0, length.count - progress.records) / self.samples_per_s
        if length_batches is not None and self.batches_per_s:
            return max(0, length_batches - progress.batches) / self.batches_per_s
        return None


# --- the display ---


class FitDisplay:
    """A bar by rich, which has no thread: it is drawn between batches. Where there is no terminal, one line per report,
    at most one a second; between reports that are far apart, more lines."""

    def __init__(self) -> None:
        self._stream = sys.stderr
        self._is_over = False  # closed, or the terminal went away
        self._redirected: list[tuple[logging.StreamHandler[Any], TextIO | None]] = []
        self._live = _open_live()
        if self._live is not None:
            before = (sys.stdout, sys.stderr)
            self._live.start()
            self._live.console.show_cursor(True)  # a killed process could not bring it back
            self._redirected = [(each, each.setStream(sys.stderr)) for each in _handlers_of(before)]

    def is_due(self, since_s: float, *, is_boundary: bool) -> bool:
        """Whether to draw, `since_s` after the last time. A boundary: new averages are known."""
        return since_s >= (_BAR_S if self._live is not None else _BOUNDARY_LINE_S if is_boundary else _LINE_S)

    def draw(self, status: FitStatus) -> None:
        if (live := self._live) is not None:
            self._guarded(lambda: live.update(_render(status), refresh=True))
        elif not status.doing:
            self.say(" | ".join(parts_of(status)))

    def say(self, line: str) -> None:
        """A line that stays: it is not drawn over."""
        if (live := self._live) is not None:
            self._guarded(lambda: live.console.print(line, markup=False, soft_wrap=True))
        else:
            self._guarded(lambda: print(line, file=self._stream, flush=True))

    def close(self) -> None:
        for handler, stream in self._redirected:
            if stream is not None:
                handler.setStream(stream)
        self._redirected = []
        if self._live is not None:
            self._guarded(self._live.stop)
        self._is_over = True

    def _guarded(self, act: Callable[[], None]) -> None:
        try:
            if not self._is_over:
                act()
        except (OSError, ValueError):  # the terminal went away, or the script has closed the stream
            self._is_over = True


def _open_live() -> Live | None:
    """None: neither a terminal nor a notebook."""
    can_be_notebook = "IPython" in sys.modules and importlib.util.find_spec("ipywidgets") is not None
    if not sys.stderr.isatty() and not can_be_notebook:
        return None
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True, highlight=False)
    is_shown = console.is_jupyter or (sys.stderr.isatty() and not console.is_dumb_terminal)
    return Live(console=console, auto_refresh=False, vertical_overflow="crop", transient=True) if is_shown else None


def _handlers_of(streams: tuple[TextIO, TextIO]) -> list[logging.StreamHandler[Any]]:
    """Handlers keep the stream they were created with, and would write into the bar."""
    loggers = [logging.root, *(each for each in logging.root.manager.loggerDict.values())]
    return [
        handler
        for logger in loggers
        if isinstance(logger, logging.Logger)
        for handler in logger.handlers
        if isinstance(handler, logging.StreamHandler) and handler.stream in streams
    ]


def _render(status: FitStatus) -> Any:
    from rich.console import Group
    from rich.text import Text

    first = Text(no_wrap=True, overflow="ellipsis")
    full = round(status.share * _BAR_WIDTH)
    first.append("━" * full, style="green").append("━" * (_BAR_WIDTH - full), style="bright_black")
    first.append(f" {status.share:4.0%}  " + " · ".join(parts_of(status)))
    more = [each for each in (status.validation, status.best) if each]
    return Group(first, *(Text(each, style="dim", no_wrap=True, overflow="ellipsis") for each in more))
