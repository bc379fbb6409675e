"""TensorBoard itself, as a child on the loopback address. It ends with this process, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from everstep import env
from everstep.errors import UsageError
from everstep.process import Child, program_command

LOOPBACK = "127.0.0.1"
REFRESH_S = 5.0  # between two looks of TensorBoard at its folder
_START_S = 300.0
_END_S = 10.0
_READY = re.compile(r"TensorBoard \S+ at (http://\S+)")
_MOST_LINES = 20
_SIGTERM = 15


@contextlib.contextmanager
def tensorboard(folder: Path, scratch: Path, port: int, title: str) -> Iterator[tuple[Child, str]]:
    """The process, and its URL. `scratch`: a folder for its temporary files. `port`: 0: any free one."""
    arguments = {
        "--logdir": str(folder),
        "--host": LOOPBACK,
        "--port": str(port),
        "--reload_interval": f"{REFRESH_S:g}",
        "--window_title": title,
    }
    words = [f"{name}={value}" for name, value in arguments.items()]
    reading, writing = os.pipe()
    with open(reading, "rb", buffering=0) as pipe:
        command = program_command("everstep.jobs.board_process", *words, "--reload_multifile=true")
        try:
            child = Child.start(command, output=writing, env={**env.everything(), "TMPDIR": str(scratch)})
        finally:
            os.close(writing)
        said = _ShownLines(pipe)
        with child:
            try:
                yield child, said.url()
            finally:
                child.signal(_SIGTERM, is_for_group=False)  # it removes its own files, and ends its data server
                child.wait(_END_S)


def main() -> None:
    """TensorBoard's own program, in the child."""
    from tensorboard.main import run_main

    run_main()


class _ShownLines:
    """What it prints: read to the end, so that it never waits for us."""

    def __init__(self, pipe: Iterator[bytes]) -> None:
        self._pipe, self._lines = pipe, deque[str](maxlen=_MOST_LINES)
        self._url, self._is_known = "", threading.Event()
        threading.Thread(target=self._read, name="tensorboard", daemon=True).start()

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # closed
            for line in self._pipe:
                text = line.decode(errors="replace").rstrip()
                self._lines.append(text)
                if not self._url and (found := _READY.search(text)):
                    self._url = found[1]
                    self._is_known.set()
        self._is_known.set()

    def url(self) -> str:
        self._is_known.wait(_START_S)
        if self._url:
            return self._url
        last = "\n  ".join(self._lines) or "it printed nothing"
        raise UsageError(
            f"TensorBoard did not start:\n  {last}",
            hint="is the port taken? Without --port, the system chooses a free one",
            code="tensorboard-start",
        )
