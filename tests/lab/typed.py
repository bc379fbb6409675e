"""A command as a person types it, and all that it said."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from everstep.process import Child
from lab.terminal import until

ROOT = Path(__file__).parents[2]
HOLD = Path(__file__).parent / "hold.py"
DEADLINE_S = 240.0
PATIENCE_S = 10.0


class Typed:
    """A command that was typed; `finish` gives all that it said."""

    def __init__(self, command: list[str], log: Path, env: dict[str, str], others: Sequence[Typed] = ()) -> None:
        """`others`: what else was typed; if this one fails, the reason may be there."""
        self._command, self._log, self._others = command, log, others
        with log.open("wb") as output:
            self.process = Child.start(command, env=env, output=output, cwd=log.parent)

    @property
    def said(self) -> str:
        return self._log.read_text(errors="replace")

    def _story(self) -> str:
        """What all have said, this one first."""
        all_ = [self, *(each for each in self._others if each is not self)]
        return "\n".join(f"{each._command} said\n{each.said}" for each in all_)

    def wait_said(self, pattern: str) -> re.Match[str]:
        until(
            lambda: re.search(pattern, self.said) is not None or self.process.wait(0) is not None,
            lambda: f"{self._command} did not say {pattern!r} in time\n{self._story()}",
        )
        found = re.search(pattern, self.said)
        assert found is not None, f"{self._command} ended without saying {pattern!r}\n{self._story()}"
        return found

    def kill(self, *workers: str) -> None:
        """SIGKILL to workers of `everstep run`."""
        for worker in workers:
            os.kill(int(self.wait_said(rf"{worker} started \(pid (\d+)\)")[1]), signal.SIGKILL)

    def let_go(self) -> None:
        """Those that hold.py holds."""
        (self._log.parent / "go").touch()

    def finish(self, *, is_good: bool = True) -> str:
        ended = self.process.wait(DEADLINE_S)
        assert ended is not None, f"{self._command} did not end within {DEADLINE_S:.0f} s\n{self._story()}"
        assert ended.is_good == is_good, f"{self._command}: {ended}\n{self._story()}"
        return self.said

    def end(self) -> None:
        """Ask it to end and take its children along, as torchrun's are in sessions of their own; then kill it."""
        self.process.signal(signal.SIGTERM, is_for_group=False)
        self.process.wait(PATIENCE_S)
        self.process.kill()


@contextmanager
def keyboard(home: Path) -> Iterator[Callable[..., Typed]]:
    """Starts programs in a folder that is also their home, with one thread for each process; at last ends them."""
    outer = {name: value for name, value in os.environ.items() if not name.startswith(("EVERSTEP_", "PET_"))}
    given = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HOME": str(home), "COLUMNS": "160"}
    typed: list[Typed] = []

    def start(*command: object, **env: str) -> Typed:
        log = home / f"terminal-{len(typed)}.log"
        typed.append(Typed([str(each) for each in command], log, outer | given | env, typed))
        return typed[-1]

    try:
        yield start
    finally:
        for each in typed:
            each.end()
