"""Where a person looks: stdout, stderr, and a progress line at the bottom if stderr is a terminal.

Both streams may be the same terminal: the progress line is wiped before anything is printed and drawn again after it.
A character that the terminal's encoding lacks is replaced; a reader that went away (`| head`), or a full disk, ends
nothing: what cannot be written is dropped.
For one thread."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TextIO

from everstep import env

_WIPE = "\r\x1b[2K"


class Console:
    def __init__(self, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self._out, self._err = out or sys.stdout, err or sys.stderr
        self._progress = ""

    @property
    def is_terminal(self) -> bool:
        """Whether there is a progress line."""
        return self._err.isatty()

    @property
    def width(self) -> int:
        """Columns, read each time: a window can be resized."""
        try:
            return int(env.value("COLUMNS") or "") or 80
        except ValueError:
            pass
        try:
            return os.get_terminal_size(self._err.fileno()).columns or 80
        except OSError:  # no terminal
            return 80

    @property
    def dot(self) -> str:
        return "·" if _fitting("·", self._err) == "·" else "|"

    def print(self, out: Sequence[str] = (), err: Sequence[str] = ()) -> None:
        """Lines for stdout, then lines for stderr."""
        if not out and not err:
            return
        progress = self._progress
        self.draw("")
        for stream, lines in ((self._out, out), (self._err, err)):
            if lines:
                _write(stream, "\n".join(lines) + "\n")
        self.draw(progress)

    def draw(self, progress: str) -> None:
        """Replace the progress line; by none if empty. It never fills the last column: some terminals wrap there."""
        progress = progress[: self.width - 1]
        if progress != self._progress:
            self._progress = progress
            _write(self._err, _WIPE + progress)


def _write(stream: TextIO, text: str) -> None:
    try:
        stream.write(_fitting(text, stream))
        stream.flush()
    except OSError as error:
        _drain(stream, is_for_good=isinstance(error, BrokenPipeError))


def _drain(stream: TextIO, *, is_for_good: bool) -> None:
    """Discard the stream's buffer: it would be written again, at the latest when the process ends."""
    there, nowhere = os.dup(stream.fileno()), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    stream.flush()
    if not is_for_good:
        os.dup2(there, stream.fileno())
    os.close(there)
    os.close(nowhere)


def _fitting(text: str, stream: TextIO) -> str:
    encoding = stream.encoding or "utf-8"
    return text.encode(encoding, "replace").decode(encoding)
