"""A thousand nodes of eight workers at one coordinator: what it costs at rest, and how soon all know of a death.

One real coordinator process, real HTTP on loopback. Nodes are simulated by a few processes, with the calls that real
ones make, one connection for each worker and two for each agent. The workers train: each report says that all
have advanced. Then one worker after another dies, and the others form the next generation.

- `told_s`: from the report of a death until the last worker knows of it, for the worst of all deaths; `formed_s`:
  until the last worker has its place in the next generation
- `coordinator_cores`: processor time of the coordinator's process at rest; `rss_mb`: its memory at its highest
- `report_p99_s`: round trip of agents' reports that ask not to be held, at rest or during changes, whichever is worse

Prints a small table; the last line is JSON.

    python benchmarks/scale.py --nodes 1000"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import statistics
import sys
import time
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

import uvloop

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.membership import (
    WORKERS_OF_A_NODE,
    Agent,
    Town,
    cpu_s,
    forgive,
    raise_file_limit,
    running_coordinator,
    show,
)
from everstep import wire

JOB = "scale"
SETTLE_S = 3.0  # until all have heard of a new generation, and their agents vouch for them
POLL_S = 0.01


class District:
    """The nodes that one process simulates. It does what it is asked over a pipe, and replies."""

    def __init__(self, pipe: Pipe, url: str, token: str, numbers: range) -> None:
        self._pipe = pipe
        self._town = Town(url, token, JOB)
        self._agents = [Agent(self._town, number) for number in numbers]
        self._town.size = len(numbers) * WORKERS_OF_A_NODE

    async def live(self) -> None:
        for agent in self._agents:
            for life in agent.lives():
                self._town.live(life)
        loop = asyncio.get_running_loop()
        while True:
            name, *values = await loop.run_in_executor(None, self._pipe.recv)
            self._pipe.send(await getattr(self, name)(*values))

    async def formed(self) -> float:
        """When all workers here had their place in a generation."""
        await self._town.all_formed()
        return time.monotonic()

    async def lose_one(self) -> float:
        """Report a worker's death, and return when it was reported."""
        worker = self._agents[0].workers.pop()
        self._town.size -= 1
        forgive(worker.life)
        worker.connection.close()
        reported_at = time.monotonic()
        await self._town.ask("POST", f"/workers/{worker.name}/exited", wire.WorkerExit(exit_code=-9))
        return reported_at

    async def all_know(self, since: float) -> float:
        """When the last worker here knew of the death."""
        workers = [worker for agent in self._agents for worker in agent.workers]
        while any(worker.told_at < since for worker in workers):
            await asyncio.sleep(POLL_S)
        return max(worker.told_at for worker in workers)

    async def round_trips_s(self, since: float, until: float) -> list[float]:
        return [took for agent in self._agents for at, took in agent.round_trips_s if since <= at < until]


def simulate(pipe: Pipe, url: str, token: str, numbers: range) -> None:
    raise_file_limit()
    uvloop.run(District(pipe, url, token, numbers).live())


class Districts:
    """All simulating processes."""

    def __init__(self, url: str, token: str, num_nodes: int, num_processes: int) -> None:
        self._pipes: list[Pipe] = []
        self._processes = []
        context = multiprocessing.get_context("spawn")
        for index in range(num_processes):
            pipe, other = context.Pipe()
            numbers = range(index, num_nodes, num_processes)
            process = context.Process(target=simulate, args=(other, url, token, numbers), daemon=True)
            process.start()
            self._processes.append(process)
            self._pipes.append(pipe)

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()

    def ask(self, name: str, *values: Any) -> list[Any]:
        for pipe in self._pipes:
            pipe.send((name, *values))
        return [pipe.recv() for pipe in self._pipes]

    def lose_one(self) -> float:
        self._pipes[0].send(("lose_one",))
        reported_at: float = self._pipes[0].recv()
        return reported_at

    def report_p99_s(self, since: float, until: float) -> float:
        took_s = [took for each in self.ask("round_trips_s", since, until) for took in each]
        return statistics.quantiles(took_s, n=100)[98] if len(took_s) > 1 else 0.0


async def create_job(url: str, token: str, num_nodes: int, lease_s: float) -> None:
    policy = wire.Policy(
        start_nodes=num_nodes, min_nodes=num_nodes, max_nodes=num_nodes, start_workers=num_nodes * WORKERS_OF_A_NODE,
        lease_s=lease_s, arrive_s=60.0, start_s=600.0, join_s=600.0, stall_s=600.0, micro_batch_deaths=1000,
    )  # fmt: skip
    await Town(url, token, JOB).ask("PUT", "", wire.JobSpec(policy=policy))


def measure(districts: Districts, pid: int, seconds: float, num_losses: int) -> dict[str, float]:
    districts.ask("formed")
    time.sleep(SETTLE_S)
    before_s, began = cpu_s(pid), time.monotonic()
    time.sleep(seconds)
    ended = time.monotonic()
    cores = (cpu_s(pid) - before_s) / (ended - began)
    rest_p99_s = districts.report_p99_s(began, ended)
    told_s, formed_s, change_p99_s = [], [], []
    for _ in range(num_losses):
        before_s, reported_at = cpu_s(pid), districts.lose_one()
        told_s.append(max(districts.ask("all_know", reported_at)) - reported_at)
        formed_s.append(max(districts.ask("formed")) - reported_at)
        change_p99_s.append(districts.report_p99_s(reported_at, time.monotonic()))
        change_cpu_s = cpu_s(pid) - before_s
        time.sleep(SETTLE_S)
    return {
        "told_s": max(told_s),
        "formed_s": max(formed_s),
        "change_cpu_s": change_cpu_s,
        "coordinator_cores": cores,
        "report_p99_s": max(rest_p99_s, *change_p99_s),
        "report_rest_p99_s": rest_p99_s,
        "rss_mb": highest_mb(pid),
    }


def highest_mb(pid: int) -> float:
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--nodes", type=int, default=1000, help=f"number of nodes, each with {WORKERS_OF_A_NODE} workers"
    )
    parser.add_argument("--processes", type=int, default=2, help="processes that simulate the nodes")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long the coordinator is watched at rest")
    parser.add_argument("--losses", type=int, default=3, help="number of workers that die, one after the other")
    parser.add_argument(
        "--lease-s", type=float, default=30.0, help="the job's lease_s: long, because clients share the cores"
    )
    arguments = parser.parse_args()
    found: dict[str, float] = {"nodes": arguments.nodes, "workers": arguments.nodes * WORKERS_OF_A_NODE}
    with running_coordinator() as at:
        uvloop.run(create_job(at.url, at.token, arguments.nodes, arguments.lease_s))
        districts = Districts(at.url, at.token, arguments.nodes, min(arguments.processes, arguments.nodes))
        with contextlib.closing(districts):
            found |= measure(districts, at.pid, arguments.seconds, arguments.losses)
    show(found)


if __name__ == "__main__":
    main()
