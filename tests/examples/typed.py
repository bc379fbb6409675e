"""A command as a person types it, and all that it said when it has ended."""

from __future__ import annotations

import signal
from pathlib import Path

from everstep.process import Child

DEADLINE_S = 90.0
PATIENCE_S = 10.0


class Typed:
    """A command that was typed; `finish` gives all that it said."""

    def __init__(self, command: list[str], log: Path, env: dict[str, str]) -> None:
        self._command, self._log = command, log
        with log.open("wb") as output:
            self.process = Child.start(command, env=env, output=output, cwd=log.parent)

    def finish(self) -> str:
        ended = self.process.wait(DEADLINE_S)
        said = self._log.read_text(errors="replace")
        assert ended is not None, f"{self._command} did not end within {DEADLINE_S:.0f} s\n{said}"
        assert ended.is_good, f"{self._command}: {ended}\n{said}"
        return said

    def end(self) -> None:
        """Ask it to end and take its children along, as torchrun's are in sessions of their own; then kill it."""
        self.process.signal(signal.SIGTERM, is_for_group=False)
        self.process.wait(PATIENCE_S)
        self.process.kill()
