"""A command as a person types it: started in a folder, what it says, how it ends. All stories type theirs here.

What it inherits is made in one place: nothing of a job that the tests themselves may run in, and this source tree."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from everstep.env import CHECK_EVENTS
from everstep.process import Child

ROOT = Path(__file__).parents[2]
EVERSTEP = (sys.executable, "-m", "everstep")
CALM_OPTIONS = ("--lease-s=60", "--arrive-s=60", "--stall-s=60")  # as stage.CALM: nobody is given up for being slow
DEADLINE_S = 240.0  # of one event or one end: none of them takes a tenth of it
_RUN_S = 480.0
_PATIENCE_S = 10.0
_Typed = TypeVar("_Typed", bound="Command")
_NOT_INHERITED = ("EVERSTEP_", "PET_", "OMP_")


def until(
    condition: Callable[[], Any], story: Callable[[], str] = lambda: "not in time", timeout_s: float = DEADLINE_S
) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, story()
        time.sleep(0.01)


def environment(**more: str) -> dict[str, str]:
    outer = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_INHERITED)}
    return outer | {"PYTHONPATH": str(ROOT), "COLUMNS": "160", "PYTHONFAULTHANDLER": "1", CHECK_EVENTS: "1"} | more


def run(
    *words: object, folder: Path, text: str = "", timeout_s: float = _RUN_S, **env: str
) -> subprocess.CompletedProcess[str]:
    """Type a command and `text`, and wait for its end."""
    return subprocess.run(
        [str(word) for word in words],
        cwd=folder,
        env=environment(**env),
        input=text,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def everstep(*words: object, folder: Path, text: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    return run(*EVERSTEP, *words, folder=folder, text=text, **env)


class Shell:
    """A folder and its variables, where commands of `everstep` are typed one after another."""

    def __init__(self, folder: Path, **env: str) -> None:
        self.folder = folder
        self.env = {"EVERSTEP_HOME": str(folder / "home"), **env}

    def type(self, *words: str, is_good: bool = True) -> str:
        """What it prints to stdout; all that it did is `last`."""
        self.last = done = everstep(*words, folder=self.folder, **self.env)
        assert (done.returncode == 0) == is_good, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout


class Command:
    """One that was typed, and runs until it ends or `end` ends it; as does the end of `with`."""

    def __init__(
        self,
        *words: object,
        folder: Path,
        start: Callable[..., Child] = Child.start,
        are_errors_apart: bool = False,
        others: Sequence[Command] = (),
        **env: str,
    ) -> None:
        """`others`: what else was typed; if this one fails, the reason may be there."""
        self._words, self._others, self.folder = [str(word) for word in words], others, folder
        self._log = folder / f"terminal-{len(list(folder.glob('terminal-*.log')))}.log"
        self._errors = self._log.with_suffix(".errors") if are_errors_apart else self._log
        with self._log.open("ab") as output, self._errors.open("ab") as errors:
            self.process = start(self._words, env=environment(**env), output=output, errors=errors, cwd=folder)

    def __enter__(self: _Typed) -> _Typed:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    @property
    def said(self) -> str:
        """To stdout, and to stderr unless that is apart."""
        return self._log.read_text(errors="replace")

    @property
    def errors(self) -> str:
        return self._errors.read_text(errors="replace")

    def story(self) -> str:
        """What all have said, this one first."""
        all_ = [self, *(each for each in self._others if each is not self)]
        return "\n".join(f"{each._words} said\n{each.said}\n{each._apart}" for each in all_)

    @property
    def _apart(self) -> str:
        return self.errors if self._errors != self._log else ""

    def until(self, condition: Callable[[], Any], what: str) -> None:
        until(
            lambda: condition() or self.process.wait(0) is not None,
            lambda: f"not in time: {what}\n{self.story()}",
        )
        assert condition(), f"it ended before: {what}\n{self.story()}"

    def wait_said(self, pattern: str, *, num_times: int = 1, after: int = 0) -> re.Match[str]:
        """`after`: skip this many characters of the output."""

        def found() -> list[re.Match[str]]:
            return list(re.finditer(pattern, (self.said + self._apart)[after:]))

        self.until(lambda: len(found()) >= num_times, f"{pattern!r} {num_times} times")
        return found()[num_times - 1]

    def exit_code(self) -> int:
        ended = self.process.wait(DEADLINE_S)
        if ended is None:
            self.process.signal(signal.SIGABRT, is_for_group=False)  # faulthandler tells where it is
            self.process.wait(_PATIENCE_S)
        assert ended is not None, f"no end within {DEADLINE_S:.0f} s\n{self.story()}"
        return ended.code

    def finish(self, *, is_good: bool = True) -> str:
        """All that it said."""
        code = self.exit_code()
        assert (code == 0) == is_good, f"exit code {code}\n{self.story()}"
        return self.said

    def signal(self, number: int) -> None:
        self.process.signal(number, is_for_group=False)

    def kill(self, *workers: str) -> None:
        """SIGKILL to workers of `everstep run`."""
        for worker in workers:
            os.kill(int(self.wait_said(rf"\b{worker} started \(pid (\d+)\)")[1]), signal.SIGKILL)

    def let_go(self) -> None:
        """Those that hold.py holds."""
        (self.folder / "go").touch()

    def end(self) -> None:
        """Ask it to end and take its children along, as torchrun's are in sessions of their own; then kill it."""
        self.signal(signal.SIGTERM)
        self.process.wait(_PATIENCE_S)
        self.process.kill()


@contextmanager
def keyboard(folder: Path, **env: str) -> Iterator[Callable[..., Command]]:
    """Starts programs in a folder, at last ends them."""
    typed: list[Command] = []

    def start(*words: object, **more: Any) -> Command:
        typed.append(Command(*words, folder=folder, others=typed, **{**env, **more}))
        return typed[-1]

    try:
        yield start
    finally:
        for each in typed:
            each.end()
