"""A command as a person types it: started in a folder, with its output and exit code. All stories use this.

The environment comes from one place: this source tree, and nothing of a job that the tests themselves may run in."""

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
CALM_OPTIONS = ("--lease-s=60", "--arrive-s=60", "--stall-s=60")  # as stage.CALM: no worker is given up for being slow
DEADLINE_S = 240.0  # for one event or one exit; none takes a tenth of it
_RUN_S = 480.0
_PATIENCE_S = 10.0
_Typed = TypeVar("_Typed", bound="Command")
_NOT_INHERITED = ("EVERSTEP_", "PET_", "OMP_")


def until(
    condition: Callable[[], Any], story: Callable[[], str] = lambda: "not in time", timeout_s: float = DEADLINE_S
) -> None:
    """Looks less often the longer it takes: what is waited for needs the cores itself."""
    began = time.monotonic()
    while not condition():
        waited = time.monotonic() - began
        assert waited < timeout_s, story()
        time.sleep(min(max(0.01, waited / 25), 0.04))


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
    """A folder and variables for `everstep` commands that are typed one after another."""

    def __init__(self, folder: Path, **env: str) -> None:
        self.folder = folder
        self.env = {"EVERSTEP_HOME": str(folder / "home"), **env}

    def type(self, *words: str, is_good: bool = True) -> str:
        """Its stdout; `last` has the rest."""
        self.last = done = everstep(*words, folder=self.folder, **self.env)
        assert (done.returncode == 0) == is_good, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout


class Command:
    """A command that runs until it exits, or until `end` or the end of the `with` stops it."""

    def __init__(
        self,
        *words: object,
        folder: Path,
        start: Callable[..., Child] = Child.start,
        are_errors_apart: bool = False,
        others: Sequence[Command] = (),
        **env: str,
    ) -> None:
        """`others`: other running commands; if this one fails, the reason may be in their output."""
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
        """Its stdout, and its stderr unless that is separate."""
        return self._log.read_text(errors="replace")

    @property
    def errors(self) -> str:
        return self._errors.read_text(errors="replace")

    def story(self) -> str:
        """The output of all commands, this one first."""
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
            self.process.signal(signal.SIGABRT, is_for_group=False)  # faulthandler prints the stacks
            self.process.wait(_PATIENCE_S)
        assert ended is not None, f"no end within {DEADLINE_S:.0f} s\n{self.story()}"
        return ended.code

    def finish(self, *, is_good: bool = True) -> str:
        """Its whole output."""
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
        """Ask it to end with its children, since torchrun's have their own sessions; then kill it."""
        self.signal(signal.SIGTERM)
        self.process.wait(_PATIENCE_S)
        self.process.kill()


@contextmanager
def keyboard(folder: Path, **env: str) -> Iterator[Callable[..., Command]]:
    """Starts programs in a folder, and ends them at the end."""
    typed: list[Command] = []

    def start(*words: object, **more: Any) -> Command:
        typed.append(Command(*words, folder=folder, others=typed, **{**env, **more}))
        return typed[-1]

    try:
        yield start
    finally:
        for each in typed:
            each.end()
