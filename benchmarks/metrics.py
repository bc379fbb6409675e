"""How many points of metrics a coordinator keeps per second, and what that costs heartbeats.

One coordinator process on loopback with 200 simulated workers: each watches, which is its heartbeat, and leases.
First without metrics, then while 16 of them report as fast as they are answered: every call has 50 reports of 10
metrics, durable before the reply. Then the same while 100 browsers, which are another process, follow the job's live
stream. A heartbeat's figure is the time of its call. Then a series of a million points,
which was there before, is fetched for a plot of 1,000 columns, ready as lists. On SQLite, and with --postgresql there
as well, both with fsync. At the end, the coordinator must have all points that it has acknowledged. Searches of logs:
see benchmarks/logs.py. Prints a table; the last line is JSON. Takes 2 to 4 minutes.

On a busy machine, other programs have the processor while a heartbeat waits. For each call, the kernel says how long
the coordinator's event loop and this process were ready to run and had no processor. `heartbeat_p99_own_s` is the p99
of the calls without the longer of the two, since both may wait at the same time; `heartbeat_p99_starved_s` is the rest
of `heartbeat_p99_s`. The same with `quiet_` (no metrics) and `reader_`.

Goals: `points_per_s` 10,000; `heartbeat_p99_s` and `reader_heartbeat_p99_s` 0.1; `plot_1e6_s` 0.15;
`log_search_10mb_s` 0.15; `log_search_1gb_first_s` 0.5.

    python benchmarks/metrics.py --workers 200 --seconds 10"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import uvloop

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.leases import BATCH_SIZE, DATASET, MINIBATCHES, POLICY, postgres
from benchmarks.leases import Worker as Lessee
from benchmarks.logs import measure as measure_logs
from benchmarks.membership import Town, cpu_s, gather_some, running_coordinator
from benchmarks.stream_readers import following
from everstep import wire
from everstep.record.store import MetricStore
from everstep.record.writing import Incoming

NUM_REPORTERS, REPORTS_PER_CALL, NUM_METRICS = 16, 50, 10
THINK_S = 0.4  # between two leases of a worker
PLOT_JOB, COLUMNS, NUM_PLOTS = "plotted", 1000, 9
WARM_S = 2.0


class Starvation:
    """How long the main threads of processes could have run, but other processes had the processor."""

    def __init__(self, *pids: int) -> None:
        self._files = [os.open(f"/proc/{pid}/schedstat", os.O_RDONLY) for pid in pids]

    def now(self) -> list[float]:
        """Seconds so far, of each."""
        return [int(os.pread(file, 100, 0).split()[1]) / 1e9 for file in self._files]

    def longest_since(self, before: list[float]) -> float:
        return max(now - then for now, then in zip(self.now(), before, strict=True))


class Beat(NamedTuple):
    call_s: float
    starved_s: float  # of it


class Worker(Lessee):
    """Watches and leases, each on a connection of its own."""

    async def watch(self, until: float, starvation: Starvation, beats: list[Beat]) -> None:
        """It has seen nothing yet, so that it is answered at once: the whole time of the call counts."""
        connection = await self.town.connect()
        head = self.town.head("POST", f"/workers/{self.name}/watch")
        body = wire.to_json(wire.Watch(incarnation=self.name, generation=0, seen=0))
        await asyncio.sleep(POLICY["heartbeat_s"] * random.random())
        while time.monotonic() < until:
            started, starved = time.monotonic(), starvation.now()
            await connection.call_raw(head, body)
            beats.append(Beat(time.monotonic() - started, starvation.longest_since(starved)))
            await asyncio.sleep(POLICY["heartbeat_s"])
        connection.close()


class Reporter:
    def __init__(self, town: Town, worker: str, number: int) -> None:
        self.town, self.number, self.step, self.num_points = town, number, 0, 0
        self.head = town.head("POST", f"/workers/{worker}/metrics")
        # Made once: heartbeats are timed by this process too.
        self.values = [
            json.dumps({f"r{number}m{each}": math.sin(step * (each + 1)) for each in range(NUM_METRICS)})
            for step in range(100)
        ]

    async def report(self, since: float, until: float) -> int:
        """Returns how many points were acknowledged between the two moments."""
        connection, num_timed = await self.town.connect(), 0
        while time.monotonic() < until:
            steps = range(self.step, self.step + REPORTS_PER_CALL)
            reports = [
                f'{{"step":{step},"time":1.5,"values":{self.values[step % len(self.values)]}}}' for step in steps
            ]
            body = f'{{"reports":[{",".join(reports)}]}}'.encode()
            kept = json.loads(await connection.call_raw(self.head, body))
            self.step += REPORTS_PER_CALL
            self.num_points += kept["num_points"]
            if since <= time.monotonic() < until:
                num_timed += kept["num_points"]
        connection.close()
        return num_timed


async def lives(workers: list[Worker], until: float, starvation: Starvation) -> list[Beat]:
    """Heartbeats and leases until then."""
    beats: list[Beat] = []
    leases: list[float] = []
    await asyncio.gather(
        *(each.watch(until, starvation, beats) for each in workers),
        *(each.work(0.0, until, THINK_S, leases) for each in workers),
    )
    return beats


def p99(times: list[float]) -> float:
    return statistics.quantiles(times, n=100)[98]


def heartbeat_figures(beats: list[Beat], prefix: str = "") -> dict[str, float]:
    all_s, own_s = p99([each.call_s for each in beats]), p99([max(0.0, each.call_s - each.starved_s) for each in beats])
    name = f"{prefix}heartbeat_p99"
    return {f"{name}_s": all_s, f"{name}_own_s": own_s, f"{name}_starved_s": all_s - own_s}


async def measure(url: str, token: str, pid: int, arguments: argparse.Namespace) -> dict[str, float]:
    town = Town(url, token)
    policy = wire.Policy(start_workers=arguments.workers + 1, **POLICY)  # type: ignore[arg-type]
    await town.ask("PUT", "", wire.JobSpec(policy=policy))
    spec = wire.DatasetSpec(size=10**12, batch_size=BATCH_SIZE, minibatches_per_shard=MINIBATCHES)
    await town.ask("PUT", f"/datasets/{DATASET}", spec)
    workers = [Worker(town, number) for number in range(arguments.workers)]
    await gather_some([worker.begin for worker in workers])
    starvation, of_coordinator = Starvation(pid, os.getpid()), Starvation(pid)
    quiet = await lives(workers, time.monotonic() + arguments.seconds, starvation)
    reporters = [Reporter(town, workers[number].name, number) for number in range(NUM_REPORTERS)]

    async def load() -> tuple[list[Beat], int]:
        """The heartbeats while all report, and the points that were acknowledged after the first moments."""
        since = time.monotonic() + WARM_S
        until = since + arguments.seconds
        beating = asyncio.create_task(lives(workers, until, starvation))
        counts = await asyncio.gather(*(each.report(since, until) for each in reporters))
        return await beating, sum(counts)

    used_s, waited = cpu_s(pid), of_coordinator.now()
    loaded, num_timed = await load()
    starved = of_coordinator.longest_since(waited)
    num_points = sum(each.num_points for each in reporters)
    found = {
        "points_per_s": num_timed / arguments.seconds,
        **heartbeat_figures(loaded),
        "heartbeat_p50_s": statistics.median(each.call_s for each in loaded),
        **heartbeat_figures(quiet, "quiet_"),
        "starved_share": starved / (arguments.seconds + WARM_S),  # of the time: for want of a processor, not of us
        "coordinator_cpu_per_point_s": (cpu_s(pid) - used_s) / num_points,  # heartbeats and leases included
    }
    with following(url, token, town.job, arguments.readers) as read:
        read_by, num_read = await load()
    found |= {
        "readers": arguments.readers,
        **heartbeat_figures(read_by, "reader_"),
        "reader_points_per_s": num_read / arguments.seconds,
        **read,
    }
    await check(town, sum(each.num_points for each in reporters))
    plotted = Town(url, token, PLOT_JOB)
    await plotted.ask("PUT", "", wire.JobSpec(policy=policy))
    end = time.monotonic() + NUM_PLOTS * 1.0
    going = asyncio.create_task(lives(workers, end, starvation))
    found["plot_1e6_s"] = statistics.median([await plot(plotted, arguments.points) for _ in range(NUM_PLOTS)])
    await going
    return found


async def check(town: Town, acknowledged: int) -> None:
    listed = json.loads(await town.ask("GET", "/series", None))["series"]
    if (num_points := sum(each["count"] for each in listed)) != acknowledged:
        raise RuntimeError(f"{num_points} points are kept, but {acknowledged} were acknowledged")


async def plot(town: Town, num_points: int) -> float:
    (series,) = json.loads(await town.ask("GET", "/series", None))["series"]
    path = f"/series/{series['series']}?columns={COLUMNS}"
    started = time.monotonic()
    window: dict[str, Any] = json.loads(await town.ask("GET", path, None))
    took_s = time.monotonic() - started
    if window["num_points"] != num_points or len(window["most"]) < COLUMNS:
        raise RuntimeError(f"{window['num_points']} points in {len(window['most'])} columns")
    return took_s


def fill(store: str, num_points: int) -> None:
    """A long series that is there before the coordinator."""
    record, at_once = MetricStore(store, epoch=0), 10_000
    for start in range(0, num_points, at_once):
        steps = range(start, min(num_points, start + at_once))
        record.keep([
            Incoming(PLOT_JOB, -1, [wire.MetricReport(step=n, time=float(n), values={"x": math.sin(n)}) for n in steps])
        ])  # fmt: skip
    record.close()


def run(store: str | None, arguments: argparse.Namespace) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="everstep-bench-", dir=arguments.directory) as name:
        store = store or str(Path(name) / "store.db")
        fill(store, arguments.points)
        with running_coordinator(store) as coordinator:
            return uvloop.run(measure(coordinator.url, coordinator.token, coordinator.pid, arguments))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=10.0, help="how long calls are counted, each time")
    parser.add_argument("--readers", type=int, default=100, help="browsers that follow the job")
    parser.add_argument("--points", type=int, default=10**6, help="of the series that is plotted")
    parser.add_argument("--directory", help="where the store is, for a disk of your choice")
    parser.add_argument("--log-mb", type=int, default=1000, help="size of the large log; 0: search no log")
    parser.add_argument("--postgresql", action="store_true", help="measure there as well")
    arguments = parser.parse_args()
    found: dict[str, float | None] = {**run(None, arguments)}
    if arguments.postgresql:
        with postgres() as url:
            if url:
                found |= {f"postgresql_{key}": value for key, value in run(url, arguments).items()}
    if arguments.log_mb:
        found |= measure_logs(arguments.log_mb)
    for key, value in found.items():
        print(f"{key:32s} {'not measured' if value is None else f'{value:12.5f}'}")
    print(json.dumps({key: None if value is None else round(value, 6) for key, value in found.items()}))


if __name__ == "__main__":
    main()
