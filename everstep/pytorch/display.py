"""What a person sees of a fit: a live bar on a terminal or in a notebook, else plain lines. All of it on stderr.

While the bar is there, what the script prints or logs appears above it. Nobody who looks, or stops looking, can end
the training: a terminal that went away is left alone."""

from __future__ import annotations

import importlib.util
import logging
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from everstep import env
from everstep.pytorch.fit_status import Status, parts_of

if TYPE_CHECKING:
    from rich.live import Live

_BAR_S = 0.25  # numbers that change faster cannot be read
_BOUNDARY_LINE_S = 1.0
_LINE_S = 10.0
_BAR_WIDTH = 24


class FitDisplay(Protocol):
    def is_due(self, since_s: float, *, is_boundary: bool) -> bool:
        """Whether to draw, so long after the last time. A boundary: new averages are there."""

    def draw(self, status: Status) -> None: ...

    def say(self, line: str) -> None:
        """For good, not to be drawn over."""

    def close(self) -> None: ...


def open_display() -> FitDisplay:
    if env.value("TERM") != "dumb" and (sys.stderr.isatty() or _is_notebook()):
        return Bar()
    return ReportLines(sys.stderr)


def _is_notebook() -> bool:
    """One that can show something that changes."""
    if "IPython" not in sys.modules or importlib.util.find_spec("ipywidgets") is None:
        return False
    from rich.console import Console

    return Console().is_jupyter


class ReportLines:
    """One line per report, but not many in a second; rare reports have lines between them."""

    def __init__(self, stream: TextIO) -> None:
        self._stream: TextIO | None = stream

    def is_due(self, since_s: float, *, is_boundary: bool) -> bool:
        return since_s >= (_BOUNDARY_LINE_S if is_boundary else _LINE_S)

    def draw(self, status: Status) -> None:
        if not status.doing:
            self.say(" | ".join(parts_of(status)))

    def say(self, line: str) -> None:
        if self._stream is None:
            return
        try:
            self._stream.write(line + "\n")
            self._stream.flush()
        except (OSError, ValueError):  # nobody reads any more, or the script has closed it
            self._stream = None

    def close(self) -> None:
        self._stream = None


class Bar:
    """rich's live display. It has no thread: it is drawn between batches."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console(stderr=True, highlight=False)
        self._live: Live | None = Live(
            console=self._console, auto_refresh=False, vertical_overflow="crop", transient=True
        )
        before = (sys.stdout, sys.stderr)
        self._live.start()
        self._console.show_cursor(True)  # whoever is killed cannot bring it back
        self._redirected = [_Redirected(each) for each in _handlers_of(before)]

    def is_due(self, since_s: float, *, is_boundary: bool) -> bool:
        return since_s >= _BAR_S

    def draw(self, status: Status) -> None:
        self._guarded(lambda live: live.update(_render(status), refresh=True))

    def say(self, line: str) -> None:
        self._guarded(lambda live: live.console.print(line, markup=False, soft_wrap=True))

    def close(self) -> None:
        for each in self._redirected:
            each.undo()
        self._redirected = []
        self._guarded(lambda live: live.stop())
        self._live = None

    def _guarded(self, act: Callable[[Live], None]) -> None:
        try:
            if self._live is not None:
                act(self._live)
        except (OSError, ValueError):  # the terminal went away
            self._live = None


class _Redirected:
    """A log handler whose lines go above the bar."""

    def __init__(self, handler: logging.StreamHandler[Any]) -> None:
        self._handler = handler
        self._before = handler.setStream(sys.stderr)

    def undo(self) -> None:
        if self._before is not None:
            self._handler.setStream(self._before)


def _handlers_of(streams: tuple[TextIO, TextIO]) -> list[logging.StreamHandler[Any]]:
    """Handlers keep the stream that they were made with, and would write into the bar."""
    loggers = [logging.root, *(each for each in logging.root.manager.loggerDict.values())]
    return [
        handler
        for logger in loggers
        if isinstance(logger, logging.Logger)
        for handler in logger.handlers
        if isinstance(handler, logging.StreamHandler) and handler.stream in streams
    ]


def _render(status: Status) -> Any:
    from rich.console import Group
    from rich.text import Text

    first = Text(no_wrap=True, overflow="ellipsis")
    full = round(status.share * _BAR_WIDTH)
    first.append("━" * full, style="green").append("━" * (_BAR_WIDTH - full), style="bright_black")
    first.append(f" {status.share:4.0%}  " + " · ".join(parts_of(status)))
    more = [each for each in (status.validation, status.best) if each]
    return Group(first, *(Text(each, style="dim", no_wrap=True, overflow="ellipsis") for each in more))
