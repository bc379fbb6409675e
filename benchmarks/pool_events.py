"""How many events per second a coordinator's API takes: results of running trials, each in the store before its reply.

A real coordinator (`everstep serve`), a puppet of a node with a slot for each trial, and trials that are nothing but
connections, in processes of their own: each reports its next result when the last one is answered. An event is an
answered result: an event of a search, kept with all that follows from it.

The last line is JSON: `events_per_s`, `cpu_s_per_event` (the coordinator's processor time: what it could do on a core
of its own), `answer_ms` (median), `trials`, `experiments`, `store`, `cores`."""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import sys
import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.last_line import last_line
from benchmarks.live_pool import open_coordinator
from everstep import wire
from everstep.client.calls import Coordinator
from everstep.wire.tokens import parse_tokens

NODE = "puppet"
LENGTH = 1_000_000  # that no trial reaches
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    num_events: int
    seconds: float
    cpu_s: float
    answer_s: float


class Node:
    """Has all trials running, and continues to report."""

    def __init__(self, url: str, token: str, num_slots: int) -> None:
        self._coordinator = Coordinator(url, token, "none")
        self._num_slots, self._incarnation, self._seen = num_slots, uuid.uuid4().hex, 0
        self._states: dict[int, wire.AssignmentState] = {}
        self.jobs: set[str] = set()

    def report(self, wait_s: float = 0.1) -> None:
        message = wire.PoolReport(
            incarnation=self._incarnation,
            num_slots=self._num_slots,
            kind="puppet",
            assignments=list(self._states.values()),
            seen=self._seen,
            wait_s=wait_s,
        )
        orders = self._coordinator.report_pool("default", NODE, message)
        self._seen = orders.number
        for each in orders.run:
            self._states[each.number] = wire.AssignmentState(number=each.number, state="running")
            self.jobs.add(each.job)

    def start_all(self, number: int) -> None:
        while len(self.jobs) < number:
            self.report()

    def report_until(self, is_over: threading.Event) -> None:
        while not is_over.is_set():
            self.report(1.0)


def create(url: str, token: str, num_experiments: int, num_trials: int) -> None:
    with Coordinator(url, token, "none") as people:
        for _ in range(num_experiments):
            length = {"batches": LENGTH}
            searcher = {"name": "random", "metric": "loss", "max_trials": num_trials, "max_length": length}
            spec = wire.ExperimentSpec(
                request=uuid.uuid4().hex, searcher=searcher, hyperparameters={"lr": {"log": [1e-4, 1e-1]}}
            )
            people.create_experiment(spec)


def report_results(url: str, token: str, jobs: Sequence[str], seconds: float, found: Any) -> None:
    """In a process of its own. All trials at once; each continues where it was."""
    found.put(asyncio.run(_report_all(url, token, jobs, seconds)))


async def _report_all(url: str, token: str, jobs: Sequence[str], seconds: float) -> list[float]:
    until = time.monotonic() + seconds
    each = await asyncio.gather(*(_report(url, token, job, until) for job in jobs))
    return [took for some in each for took in some]


async def _report(url: str, token: str, job: str, until: float) -> list[float]:
    parts, (word, *_) = urlsplit(url), (each.word for each in parse_tokens(token))
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    took, length = [], 0
    while (began := time.monotonic()) < until:
        length += 1
        body = wire.to_json(wire.TrialResult(length=length, metric=1.0 / length, batches=length))
        head = (
            f"POST /v1/jobs/{job}/trial/result HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {word}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in answer.partition(b"\r\n")[0]:
            raise RuntimeError(answer.decode())
        await reader.readexactly(int(answer.lower().partition(b"content-length:")[2].split(b"\r\n")[0]))
        took.append(time.monotonic() - began)
    writer.close()
    return took


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK_S


def measure(url: str, token: str, pid: int, jobs: Sequence[str], num_processes: int, seconds: float) -> Measured:
    found: Any = multiprocessing.Queue()
    shares = [jobs[place::num_processes] for place in range(num_processes)]
    loads = [
        multiprocessing.Process(target=report_results, args=(url, token, share, seconds, found)) for share in shares
    ]
    before, began = cpu_s(pid), time.monotonic()
    for each in loads:
        each.start()
    took = [one for _ in loads for one in found.get(timeout=seconds + 60)]
    passed_s, used_s = time.monotonic() - began, cpu_s(pid) - before
    for each in loads:
        each.join()
    return Measured(num_events=len(took), seconds=passed_s, cpu_s=used_s, answer_s=median(took))


@dataclass(frozen=True, kw_only=True)
class Load:
    experiments: int = 16
    trials: int = 8  # of each
    seconds: float = 10.0
    processes: int = 2
    store: str = ""


def measure_events(load: Load) -> Measured:
    num_trials = load.experiments * load.trials
    with open_coordinator(store=load.store) as (url, token, pid):
        node = Node(url, token, num_trials)
        create(url, token, load.experiments, load.trials)
        node.start_all(num_trials)
        is_over = threading.Event()
        reporting = threading.Thread(target=node.report_until, args=[is_over])
        reporting.start()
        try:
            return measure(url, token, pid, sorted(node.jobs), load.processes, load.seconds)
        finally:
            is_over.set()
            reporting.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiments", type=int, default=Load.experiments)
    parser.add_argument("--trials", type=int, default=Load.trials, help="of each experiment")
    parser.add_argument("--seconds", type=float, default=Load.seconds)
    parser.add_argument("--processes", type=int, default=Load.processes, help="that report")
    parser.add_argument("--store", default=Load.store, help="default: SQLite in a temporary folder")
    load = Load(**vars(parser.parse_args()))
    kind = "postgresql" if load.store.startswith("postgresql") else "sqlite"
    report: dict[str, Any] = {"experiments": load.experiments, "trials": load.trials, "cores": os.cpu_count()}
    with last_line(lambda: {**report, "store": kind}):
        found = measure_events(load)
        report["events_per_s"] = round(found.num_events / found.seconds, 1)
        report["cpu_s_per_event"] = round(found.cpu_s / max(1, found.num_events), 6)
        report["answer_ms"] = round(1000 * found.answer_s, 2)


if __name__ == "__main__":
    main()
