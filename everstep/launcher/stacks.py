"""Ask a worker that hangs where it is: the stacks of all its threads, in its log, before it is killed.

py-spy sees into any Python process and is used where it is installed. Else faulthandler answers a signal: workers of
the engine and of the nursery expect SIGUSR2 and live on; others print on SIGABRT and die of it, which is what they are
about to do anyway. A process that expects neither signal is left alone."""

from __future__ import annotations

import shutil
import signal
import subprocess
from pathlib import Path

from everstep.process import Child

_PY_SPY_S = 5.0


def ask_for_stacks(child: Child, log: Path) -> None:
    if (py_spy := shutil.which("py-spy")) and _spied(py_spy, child.pid, log):
        return
    caught = _caught_signals(child.pid)
    for number in (signal.SIGUSR2, signal.SIGABRT):
        if caught >> (number - 1) & 1:
            child.signal(number, is_for_group=False)
            return


def _spied(py_spy: str, pid: int, log: Path) -> bool:
    with log.open("ab") as output:
        command = [py_spy, "dump", "--pid", str(pid)]
        try:
            return subprocess.run(command, stdout=output, stderr=output, timeout=_PY_SPY_S).returncode == 0
        except subprocess.TimeoutExpired:
            return False


def _caught_signals(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), 16)
