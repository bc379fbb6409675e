"""Run a script unchanged, but hold it at a line of its output, so that a test can act at that point.

hold.py PATTERN SCRIPT ARGS…: a process that prints a matching line waits until the file `go` is in the folder that
it was started in."""

from __future__ import annotations

import re
import runpy
import sys
import time
from pathlib import Path
from typing import Any, TextIO

HOLD = Path(__file__)


class Held:
    """A stream; after a line that matches, the writer waits."""

    def __init__(self, stream: TextIO, pattern: str, go: Path) -> None:
        self._stream, self._pattern, self._go = stream, pattern, go
        self._line = ""

    def write(self, text: str) -> int:
        written = self._stream.write(text)
        *lines, self._line = (self._line + text).split("\n")
        if any(re.search(self._pattern, line) for line in lines):
            self._stream.flush()
            while not self._go.exists():
                time.sleep(0.01)
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


if __name__ == "__main__":
    _, pattern, script, *arguments = sys.argv
    go = Path("go").absolute()
    sys.stdout, sys.stderr = (Held(each, pattern, go) for each in (sys.stdout, sys.stderr))  # type: ignore[assignment]
    sys.argv, sys.path[0] = [script, *arguments], str(Path(script).parent)
    runpy.run_path(script, run_name="__main__")
