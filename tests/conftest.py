"""Every test leaves the process as it found it: no child, thread, socket or changed environment variable stays behind.

Threads and children end a moment after they are asked to, so each check waits for its condition with a deadline."""

from __future__ import annotations

import gc
import os
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from everstep.env import CHECK_EVENTS
from everstep.process import started_at
from lab import nest
from lab.lanes import Lanes, folder_of, in_order

GRACE_S = 30.0  # on a busy machine; what ends at once costs nothing of it

# A command that is started here inherits that a signal is ignored, but not a handler.
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:  # under nohup
    signal.signal(signal.SIGHUP, lambda number, frame: None)
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # started by a script, in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No example is about time, and the machine may be busy.
settings.register_profile("busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy machine")

collect_ignore = [] if Path("/dev/nvidiactl").exists() else ["cuda"]  # stories that need a GPU


def pytest_collection_finish() -> None:
    """All modules are imported by now. The objects they hold are not garbage: keep the collector from scanning them."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def runtime_folder() -> Iterator[None]:
    """Where nurseries stay warm: those of this test process, which end with it, and no others. A socket's name may
    not be long."""
    with tempfile.TemporaryDirectory(prefix="everstep-") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", folder)
        patch.setenv(CHECK_EVENTS, "1")
        yield
        nest.close()


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    probes: dict[str, Callable[[], dict[str, str]]] = {
        "child process": _children,
        "thread": _threads,
        "socket": _sockets,
        "environment variable": _environment,
    }
    before = {what: look() for what, look in probes.items()}
    began = time.clock_gettime(time.CLOCK_BOOTTIME)
    savers_before = _num_savers()
    yield
    if _num_savers() > savers_before:  # not closed: as garbage, they would start a thread at another test's first step
        gc.collect()
    found = []
    for what, look in probes.items():
        leaked = _leaked(look, before[what], began)
        found += [f"{what} {name}: {detail}" for name, detail in leaked.items()]
    if found:
        pytest.fail("the test left behind\n  " + "\n  ".join(found), pytrace=False)


def _num_savers() -> int:
    saver = sys.modules.get("everstep.checkpoint.save")
    return len(saver._pipelines) if saver is not None else 0


def _leaked(look: Callable[[], dict[str, str]], before: dict[str, str], began: float) -> dict[str, str]:
    deadline = time.monotonic() + GRACE_S
    while True:
        now = look()
        leaked = {name: detail for name, detail in now.items() if before.get(name) != detail}
        if look is _children:  # the kernel's list skips some while others end: they may have been there before
            leaked = {pid: detail for pid, detail in leaked.items() if _started_at(pid) > began - 0.1}
        if look is _environment:
            leaked |= dict.fromkeys(before.keys() - now.keys(), "removed")
        if not leaked or time.monotonic() > deadline:
            return leaked
        time.sleep(0.005)


def _children() -> dict[str, str]:
    children = {}
    for task in Path("/proc/self/task").iterdir():
        try:
            pids = (task / "children").read_text().split()
        except OSError:  # the thread ended between the two lines
            continue
        for pid in pids:
            try:
                children[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
    return children


def _started_at(pid: str) -> float:
    """In seconds since the machine was started; for one that has ended meanwhile, long ago."""
    return int(started_at(int(pid)) or 0) / os.sysconf("SC_CLK_TCK")


def _threads() -> dict[str, str]:
    return {str(thread.ident): thread.name for thread in threading.enumerate()}


def _sockets() -> dict[str, str]:
    """Open sockets by their kernel number: a descriptor is used again at once, an inode is not."""
    sockets = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = str(entry.readlink())
        except OSError:
            continue
        if target.startswith("socket:"):
            sockets[target] = "open"
    return sockets


def _environment() -> dict[str, str]:
    own = ("PYTEST_CURRENT_TEST", "TORCHINDUCTOR_CACHE_DIR")  # the latter is set by torch at its first optimizer
    return {name: value for name, value in os.environ.items() if name not in own}


# --- side by side, and how long it took -------------------------------------------------------------

_began = time.monotonic()


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Lanes:
    return Lanes(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = in_order(items)


def pytest_unconfigure(config: pytest.Config) -> None:
    """The last lines: minutes by folder; then, for machines, how many tests there were and how they went."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or config.option.collectonly or hasattr(config, "workerinput"):
        return
    _print_minutes([report for reports in reporter.stats.values() for report in reports])
    counts = {kind: len(reporter.stats.get(kind, ())) for kind in ("passed", "failed", "error", "skipped")}
    print(
        f"\ntests={sum(counts.values())} failures={counts['failed']} errors={counts['error']}"
        f" skipped={counts['skipped']} time={time.monotonic() - _began:.1f}",
        flush=True,
    )


def _print_minutes(reports: list[object]) -> None:
    seconds: Counter[str] = Counter()
    for report in reports:
        if isinstance(report, pytest.TestReport):
            seconds[folder_of(report.nodeid)] += report.duration
    print("\nminutes by folder; lanes run side by side, so the sum is more than the clock says")
    for folder in sorted(seconds):
        print(f"  {seconds[folder] / 60:6.1f}  {folder}")
    print(f"  {sum(seconds.values()) / 60:6.1f}  sum\n  {(time.monotonic() - _began) / 60:6.1f}  by the clock")
