"""Kill -9 one worker of a job, again and again, and measure the time to the next step: Everstep, torchrun, and
nvidia-resiliency-ext. benchmarks/recovery.py compares them."""

from __future__ import annotations

import os
import random
import signal
import socket
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

from benchmarks.jobs import (
    SCRIPTS,
    STEP_S,
    Torchrun,
    TorchrunNode,
    attempt,
    full_generation,
    members,
    next_attempt,
    until,
    wait_for_random_phase,
)
from everstep.process import Child
from everstep.testing import Cluster
from everstep.testing.tape import Tape

WORKERS = 4
HUNG_S = 60.0
READY_S = 120.0
SUMS, SUMS_BEFORE = 20, 5  # steps that are timed, and steps before them


@dataclass(kw_only=True)
class Taken:
    """Seconds for each kill."""

    survivors: list[float] = field(default_factory=list)  # to the next step, of the survivors or after a full restart
    full: list[float] = field(default_factory=list)  # to the first commit with a replacement, without `script`
    script: list[float] = field(default_factory=list)  # the replacement's imports, and building its model
    sums: list[float] = field(default_factory=list)  # sums of undisturbed steps with as many workers as survive
    overheads: list[float] = field(default_factory=list)  # to the next step, without the work that remained
    hung: int = 0

    def extend(self, more: Taken) -> None:
        for mine, theirs in zip(self._lists(), more._lists(), strict=True):
            mine += theirs
        self.hung += more.hung

    def _lists(self) -> tuple[list[float], ...]:
        return self.survivors, self.full, self.script, self.sums, self.overheads


def median(taken: Sequence[float]) -> float | None:
    return round(statistics.median(taken), 4) if taken else None


# --- Everstep -----------------------------------------------------------------------------------------


def everstep_kills(
    taken: Taken,
    kills: int,
    args: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    times_sums: bool = False,
    smaller_step_s: float | None = None,
) -> None:
    """`times_sums`: the fourth worker joins after the first three have summed undisturbed.
    `smaller_step_s`: `undisturbed_step_s` with one worker fewer, for `overheads`."""
    first = WORKERS - 1 if times_sums else WORKERS
    script = SCRIPTS / "everstep_job.py"
    with Cluster(script, args, workers=first, env=env, max_restarts=10_000) as cluster:
        step_s = STEP_S
        if times_sums:
            taken.sums += _undisturbed_sums(cluster, first)
            step_s += statistics.median(taken.sums)
            cluster.add()
        for _ in range(kills):
            _kill_one(taken, cluster, step_s, smaller_step_s)


def undisturbed_step_s(args: Sequence[str], num_workers: int) -> float:
    """The median step of a job with this many workers, on the same micro-batches."""
    with Cluster(SCRIPTS / "everstep_job.py", args, workers=num_workers) as cluster:
        if not until(lambda: len(_commits(cluster, size=num_workers)) > SUMS_BEFORE + SUMS, READY_S):
            raise SystemExit(f"{num_workers} workers did not commit {SUMS_BEFORE + SUMS} steps in {READY_S:.0f} s")
        times = list(_commits(cluster, size=num_workers).values())[SUMS_BEFORE:]
    return statistics.median(after - before for before, after in pairwise(times))


def overhead_s(taken_s: float, phase_s: float, smaller_step_s: float) -> float:
    """The overhead of a kill `phase_s` after the step began. By then, survivors had computed for `phase_s`, but at most
    their own micro-batches: no one could begin the dead worker's before the kill."""
    return taken_s - (smaller_step_s - min(phase_s, STEP_S))


def _commits(cluster: Cluster, **facts: Any) -> dict[int, float]:
    """By step: when the first worker committed it."""
    found: dict[int, float] = {}
    for event in cluster.events("step.committed", **facts):
        found.setdefault(event["step"], event["t"])
    return found


def _undisturbed_sums(cluster: Cluster, size: int) -> list[float]:
    """Each step's sum, as timed by its last worker: the times of the others include waiting for its gradients."""

    def whole() -> list[float]:
        by_step = defaultdict(list)
        for event in cluster.events("sum.timed", size=size):
            by_step[event["step"]].append(event["seconds"])
        return [min(seconds) for seconds in by_step.values() if len(seconds) == size]

    if not until(lambda: len(whole()) >= SUMS_BEFORE + SUMS, READY_S):
        raise SystemExit(f"{size} workers did not commit {SUMS_BEFORE + SUMS} steps in {READY_S:.0f} s")
    return whole()[SUMS_BEFORE:]


def _kill_one(taken: Taken, cluster: Cluster, step_s: float, smaller_step_s: float | None) -> None:
    full = full_generation(cluster, WORKERS)
    wait_for_random_phase(step_s)
    killed = time.monotonic()
    cluster.kill(random.choice(members(cluster, full)))
    after = {"t": lambda t: t > killed, "generation": lambda number: number > full}
    if not until(lambda: bool(cluster.events("step.committed", **after)), HUNG_S):
        taken.hung += 1
        return
    # Without a generation in between, the replacement joined before the survivors had redone the step.
    taken.survivors.append(cluster.events("step.committed", **after)[0]["t"] - killed)
    if smaller_step_s is not None:
        begun = max(_commits(cluster, generation=full, t=lambda t: t < killed).values())
        taken.overheads.append(overhead_s(taken.survivors[-1], killed - begun, smaller_step_s))
    if not until(lambda: bool(cluster.events("step.committed", size=WORKERS, **after)), HUNG_S):
        taken.hung += 1
        return
    ready = cluster.events("script.ready", t=after["t"])[-1]
    began = cluster.events("script.began", worker=ready["worker"])[-1]
    taken.script.append(ready["t"] - began["t"])
    back = cluster.events("step.committed", size=WORKERS, **after)[0]["t"] - killed
    taken.full.append(back - taken.script[-1])


def everstep_laggard(rounds: int) -> list[float]:
    """One worker is a step behind and must receive 500 MB while another dies."""
    args = ["--ballast-mb", "480", "--lag-every", "8", "--micro-batches", str(WORKERS)]
    taken = []
    for _ in range(rounds):
        with Cluster(SCRIPTS / "everstep_job.py", args, workers=WORKERS) as cluster:
            dying = cluster.wait("dying", timeout_s=120)
            step = cluster.wait("step.committed", step=dying["step"] + 1, timeout_s=60)
            cluster.wait("transfer.received", worker="w1", t=lambda t: t > dying["t"])  # noqa: B023
            taken.append(step["t"] - dying["t"])
    return taken


# --- all restarted together: torchrun, and Everstep for scripts that do not use its engine ------------


def everstep_restarts(taken: Taken, kills: int) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="everstep-bench-", dir="/dev/shm") as directory,
        Cluster(
            SCRIPTS / "ddp_job.py", [f"{directory}/checkpoint.pt"], workers=WORKERS, max_restarts=10_000
        ) as cluster,
    ):
        _restarts(taken, Tape(cluster.directory / "events.jsonl"), kills, HUNG_S)


def torchrun_restarts(
    taken: Taken,
    kills: int,
    args: Sequence[str] = (),
    *,
    env: Mapping[str, str] | None = None,
    hung_s: float = HUNG_S,
) -> None:
    """Start a new job after each kill that a job does not survive; the kill counts as `hung_s`, the least it took."""
    options = ["--standalone", "--nproc-per-node", str(WORKERS), "--max-restarts", "10000"]
    wanted = len(taken.survivors) + kills
    while len(taken.survivors) < wanted:
        hung = taken.hung
        with Torchrun(TorchrunNode(options=options, env=env or {}), args=args) as job:
            try:
                _restarts(taken, job.tape, wanted - len(taken.survivors), hung_s)
            except SystemExit:
                print(job.log_tail())
                raise
        taken.survivors += [hung_s] * (taken.hung - hung)


def _restarts(taken: Taken, tape: Tape, kills: int, hung_s: float) -> None:
    """Kill one worker repeatedly, until the job does not restart: seconds to the first step after each restart."""
    number = next_attempt(tape, -1, 5 * WORKERS, READY_S)
    if number is None:
        raise SystemExit(f"the workers did not start in {READY_S:.0f} s")
    for _ in range(kills):
        wait_for_random_phase()
        victim = random.choice(sorted({int(event["pid"]) for event in attempt(tape, number)}))
        killed = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        number = next_attempt(tape, number, 5 * WORKERS, hung_s)
        if number is None:
            taken.hung += 1
            return
        taken.survivors.append(attempt(tape, number)[0]["t"] - killed)


# --- nvidia-resiliency-ext, where `make peers` has installed it ---------------------------------------


def nvrx_kills(python: str, kills: int) -> Taken:
    """Its in-process restart with all intervals at 50 ms. It does not replace a lost worker, so each kill needs a new
    job; its first process holds the store and must not be killed."""
    taken = Taken()
    for _ in range(kills):
        with (
            tempfile.TemporaryDirectory(prefix="everstep-bench-", dir="/dev/shm") as directory,
            ExitStack() as running,
        ):
            tape = Tape(Path(directory) / "events.jsonl")
            pids = [running.enter_context(child).pid for child in _start_nvrx(python, Path(directory))]
            if not until(lambda: len(attempt(tape, 0)) >= 5 * WORKERS, READY_S):  # noqa: B023
                taken.hung += 1
                break
            wait_for_random_phase()
            killed = time.monotonic()
            os.kill(random.choice(pids[1:]), signal.SIGKILL)
            if not until(lambda: bool(attempt(tape, 1)), HUNG_S):  # noqa: B023
                taken.hung += 1
                break
            taken.survivors.append(attempt(tape, 1)[0]["t"] - killed)
    return taken


def _start_nvrx(python: str, directory: Path) -> list[Child]:
    command = [python, str(SCRIPTS / "nvrx_job.py"), str(directory / "checkpoint.pt"), "--tuned"]
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        ports = {"MASTER_PORT": str(one.getsockname()[1]), "KEYS_PORT": str(other.getsockname()[1])}
    world = {"MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": str(WORKERS), "OMP_NUM_THREADS": "1", **ports}
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    ours = {"PYTHONPATH": path, "EVERSTEP_EVENTS": str(directory / "events.jsonl")}
    ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(WORKERS)]
    return [Child.start(command, env={**os.environ, **world, **ours, **rank}, output=DEVNULL) for rank in ranks]
