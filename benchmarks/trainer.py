"""Samples per second of the Trainer beside a plain DDP loop and Lightning: the same model, data and batches.

Two workers of each system are there from the beginning to the end, and one system trains at a time: a round of batches
by the plain loop, one by Lightning, one by the Trainer, in rotating order; each round is compared with the others' of
the same turn. The Trainer runs under a real coordinator, with its defaults: exact, with reports; Lightning without its
log, bar and checkpoints. One thread for each worker.
The last line is JSON: {"ratio_plain": …, "ratio_lightning": …}, our samples per second over theirs; null for Lightning
where `make peers` has not installed it.

    python benchmarks/trainer.py [--rounds 40] [--batches 20]"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.jobs import SCRIPTS
from benchmarks.peers import peer_python
from benchmarks.scripts.trainer_job import BATCH, WORKERS
from benchmarks.statistics_of_ratios import Ratio, paired_ratio
from everstep.process import Child
from everstep.testing import Cluster

JOB = SCRIPTS / "trainer_job.py"
SYSTEMS = ("plain", "lightning", "trainer")
WARM_UP, START_S, ROUND_S = 6, 180.0, 120.0  # the first report, at batch 100, imports TensorBoard


class System:
    """The workers of one system, connected to its socket."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._server = socket.create_server(path, family=socket.AF_UNIX)
        self._workers: list[socket.socket] = []
        self.rounds: list[float] = []  # seconds

    def meet(self) -> None:
        self._server.settimeout(START_S)
        self._workers = [self._server.accept()[0] for _ in range(WORKERS)]
        self._await_all(START_S)

    def round(self) -> float:
        started = time.perf_counter()
        for worker in self._workers:
            worker.sendall(b".")
        self._await_all(ROUND_S)
        return time.perf_counter() - started

    def _await_all(self, timeout_s: float) -> None:
        for worker in self._workers:
            worker.settimeout(timeout_s)
            if not worker.recv(1):
                raise SystemExit(f"a worker of {Path(self.path).name} has ended")

    def close(self) -> None:
        for each in (*self._workers, self._server):
            each.close()


@contextlib.contextmanager
def fixed_world(python: str, args: list[str], log: Path) -> Iterator[None]:
    """Two processes, as torchrun starts them."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    world = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(WORKERS)}
    world |= {"OMP_NUM_THREADS": "1", "LOCAL_WORLD_SIZE": str(WORKERS), "TORCHELASTIC_RUN_ID": "benchmark"}
    with contextlib.ExitStack() as running, log.open("wb") as output:
        for rank in range(WORKERS):
            env = {**os.environ, **world, "RANK": str(rank), "LOCAL_RANK": str(rank), "GROUP_RANK": "0"}
            child = Child.start([python, str(JOB), *args], env=env, output=output, cwd=log.parent)
            running.callback(child.kill)
        yield


def measure(directory: Path, rounds: int, batches: int) -> dict[str, list[float]]:
    """Seconds of each round, by system; without Lightning if it is not installed."""
    pythons = {"plain": sys.executable, "lightning": peer_python("lightning"), "trainer": sys.executable}
    present = [name for name in SYSTEMS if pythons[name]]
    systems = {name: System(str(directory / name)) for name in present}
    with contextlib.ExitStack() as running:
        for name, system in systems.items():
            running.callback(system.close)
            args = [name, system.path, str(batches)]
            log = directory / f"{name}.log"
            if name == "trainer":
                env = {"OMP_NUM_THREADS": "1", "EVERSTEP_HOME": str(directory / "home")}
                running.enter_context(Cluster(JOB, args, workers=WORKERS, env=env, directory=directory / "cluster"))
            else:
                running.enter_context(fixed_world(pythons[name], args, log))
            try:
                system.meet()
            except TimeoutError:
                raise SystemExit(f"{name} has not begun within {START_S:.0f} s\n{_said(log)}") from None
        for turn in range(-WARM_UP, rounds):
            first = turn % len(present)
            for name in present[first:] + present[:first]:
                seconds = systems[name].round()
                if turn >= 0:
                    systems[name].rounds.append(seconds)
    return {name: system.rounds for name, system in systems.items()}


def _said(log: Path) -> str:
    return log.read_text()[-2000:] if log.exists() else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--batches", type=int, default=20, help="in a round")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="everstep-") as directory:
        seconds = measure(Path(directory), args.rounds, args.batches)
    samples = args.batches * WORKERS * BATCH
    print(f"{'system':10s} samples/s (least, most)       a batch   median ratio of the Trainer to it [95 % interval]")
    for name, rounds in seconds.items():
        rates = sorted(samples / each for each in rounds)
        row = f"{name:10s} {statistics.median(rates):9,.0f} ({rates[0]:,.0f}, {rates[-1]:,.0f})"
        row = f"{row:38s} {statistics.median(rounds) / args.batches * 1e3:6.1f} ms"
        if name != "trainer":
            row += f"   {_speed_ratio(rounds, seconds['trainer'])}"
        print(row)
    print(json.dumps(report(seconds)))


def report(seconds: dict[str, list[float]]) -> dict[str, float | None]:
    """The Trainer's speed over that of each other system; None for a system that is not installed."""
    ours = seconds["trainer"]
    others = {name: seconds.get(name) for name in SYSTEMS if name != "trainer"}
    return {
        f"ratio_{name}": round(_speed_ratio(rounds, ours).median, 4) if rounds else None
        for name, rounds in others.items()
    }


def _speed_ratio(theirs: list[float], ours: list[float]) -> Ratio:
    return paired_ratio(theirs, ours)  # of times: the other way round for speeds


if __name__ == "__main__":
    main()
