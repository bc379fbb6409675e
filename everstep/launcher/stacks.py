"""Ask a worker that hangs where it is: the stacks of all its threads, in its log, before it is killed.

py-spy sees into any Python process and is used where it is installed. Else faulthandler answers a signal: workers of
the engine and of the nursery expect SIGUSR2 and live on; others print on SIGABRT and die of it, which is what they are
about to do anyway. A process that expects neither signal is left alone."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Mapping
from pathlib import Path

from everstep.process import Child

_PY_SPY_S = 5.0


def ask_for_stacks(children: Mapping[Child, Path]) -> None:
    """Of each, into its log. All at once: the caller has other things to do."""
    py_spy = shutil.which("py-spy")
    spies = {child: _spy(py_spy, child.pid, log) for child, log in children.items() if py_spy}
    deadline = time.monotonic() + _PY_SPY_S
    for child in children:
        if not _has_seen(spies.get(child), deadline):
            _signal(child)


def _signal(child: Child) -> None:
    caught = _caught_signals(child.pid)
    for number in (signal.SIGUSR2, signal.SIGABRT):
        if caught >> (number - 1) & 1:
            child.signal(number, is_for_group=False)
            return


def _spy(py_spy: str, pid: int, log: Path) -> Child | None:
    try:
        with log.open("ab") as output:
            return Child.start([py_spy, "dump", "--pid", str(pid)], output=output)
    except OSError:  # no room for the log, or for one more process
        return None


def _has_seen(spy: Child | None, deadline: float) -> bool:
    if spy is None:
        return False
    with spy:  # killed at the end, unless it has ended
        ended = spy.wait(max(0.0, deadline - time.monotonic()))
    return ended is not None and ended.is_good


def _caught_signals(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), 16)
