"""The jobs that are compared: an Everstep cluster and a torchrun job, both running one of scripts/ and followed by its
events.

torchrun runs without sharing its store, which makes it hang after some restarts."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from everstep.process import ENDED, process_state
from everstep.testing import Cluster
from everstep.testing.tape import Event, Tape, is_match

SCRIPTS = Path(__file__).parent / "scripts"
STEP_S = 0.05
_READY_S = 120.0
_END_S = 10.0
_TAIL_LINES = 30


def until(condition: Callable[[], bool], timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def wait_for_random_phase(step_s: float = STEP_S) -> None:
    time.sleep(random.uniform(0, 2 * step_s))


# --- Everstep -----------------------------------------------------------------------------------------


def full_generation(cluster: Cluster, num_workers: int) -> int:
    """Wait until this many workers have done a few steps together; returns their generation."""

    def newest() -> int:
        return max((event["generation"] for event in cluster.events("generation.formed")), default=0)

    def is_full() -> bool:
        steps = cluster.events("step.committed", generation=newest(), size=num_workers)
        return len({event["step"] for event in steps}) >= 5

    if not until(is_full, _READY_S):
        raise SystemExit(f"the workers did not come back to full strength in {_READY_S:.0f} s")
    return newest()


def members(cluster: Cluster, generation: int) -> list[str]:
    return [event["worker"] for event in cluster.events("generation.formed", generation=generation) if event["worker"]]


# --- torchrun -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class TorchrunNode:
    """One node's command: its options, a prefix, and additional environment variables."""

    options: Sequence[str]
    inside: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)


def attempt(tape: Tape, number: int) -> list[Event]:
    """The steps after this many restarts of all workers."""
    return [event for event in tape.read() if is_match(event, "step.committed", {"attempt": number})]


def next_attempt(tape: Tape, after: int, num_steps: int, timeout_s: float) -> int | None:
    """Wait until all workers together have done this many steps in an attempt after `after`. None: they have not."""

    def found() -> int | None:
        done = [event["attempt"] for event in tape.read() if event["event"] == "step.committed"]
        return next(
            (number for number in sorted(set(done)) if number > after and done.count(number) >= num_steps), None
        )

    until(lambda: found() is not None, timeout_s)
    return found()


class Torchrun:
    """scripts/ddp_job.py under torchrun, inside a `with`; leaves nothing behind."""

    def __init__(self, *nodes: TorchrunNode, args: Sequence[str] = ()) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="everstep-bench-", dir="/dev/shm"))
        self.tape = Tape(self._directory / "events.jsonl")
        self._nodes, self._args = nodes, args
        self._agents: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Torchrun:
        self._agents = [self._start(node) for node in self._nodes]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            for agent in self._agents:
                agent.send_signal(number)
            until(lambda: all(agent.poll() is not None for agent in self._agents), _END_S)
        for pid in self._alive("script.began"):  # an agent that was killed leaves its workers behind
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self._directory, ignore_errors=True)

    def _start(self, node: TorchrunNode) -> subprocess.Popen[bytes]:
        script = [str(SCRIPTS / "ddp_job.py"), str(self._directory / "checkpoint.pt"), *self._args]
        command = [*node.inside, sys.executable, "-m", "torch.distributed.run", *node.options, *script]
        env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]),
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            "EVERSTEP_EVENTS": str(self._directory / "events.jsonl"),
            "OMP_NUM_THREADS": "1",
            "TORCH_CPP_LOG_LEVEL": "ERROR",
            **node.env,
        }
        with (self._directory / "torchrun.log").open("ab") as log:
            return subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)

    def log_tail(self) -> str:
        """The last lines that agents and workers have printed."""
        return "\n".join((self._directory / "torchrun.log").read_text(errors="replace").splitlines()[-_TAIL_LINES:])

    def steps(self, **facts: Any) -> list[Event]:
        return [event for event in self.tape.read() if is_match(event, "step.committed", facts)]

    def alive(self) -> list[int]:
        """The workers that have formed their group and are still alive."""
        return self._alive("ddp.started")

    def _alive(self, event: str) -> list[int]:
        """The workers that have reported this event and are still alive."""
        said = [int(each["pid"]) for each in self.tape.read() if each["event"] == event]
        return [pid for pid in said if process_state(pid) != ENDED]
