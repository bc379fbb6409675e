"""How many samples one coordinator leases per second, and how long a worker waits for a lease.

One unit is one `lease` call: it reports the shard that the worker has done and gets the next, and its effect is flushed
to the store before the reply. A thousand simulated workers, each with a connection of its own, on the same machine as
the coordinator; each computes for a while between two calls, as real ones do (`--think-s`). Then again without
pauses, for the most that the coordinator can do. On SQLite, and on PostgreSQL where its server is installed, both with
fsync. At the end the coordinator must have counted the samples that the workers got. Prints a table; the last line is
JSON.

    python benchmarks/leases.py --workers 1000"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvloop

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.membership import Connection, Town, cpu_s, gather_some, running_coordinator
from everstep import wire

DATASET = "samples"
BATCH_SIZE, MINIBATCHES = 32, 8
SHARD_SIZE = BATCH_SIZE * MINIBATCHES
POLICY = {"heartbeat_s": 0.5, "lease_s": 600.0, "start_s": 600.0}
WARM_S = 1.0


class Worker:
    def __init__(self, town: Town, number: int) -> None:
        self.town, self.number = town, number
        self.request = self.num_units = 0
        self.leases: list[dict[str, Any]] = []

    async def begin(self) -> None:
        self.connection: Connection = await self.town.connect()
        request = wire.ReserveWorker(agent=f"a{self.number // 8}", request=str(self.number))
        answer = await self.connection.call(self.town.head("POST", "/workers"), request)
        self.name = json.loads(answer)["worker"]
        announce = wire.Announce(incarnation=self.name, pid=1, address="127.0.0.1", store_port=1, probe_port=2)
        await self.connection.call(self.town.head("POST", f"/workers/{self.name}/announce"), announce)
        self.head = self.town.head("POST", f"/workers/{self.name}/lease")

    async def unit(self) -> float:
        self.request += 1
        done = [{"lease": each["lease"], "start": each["start"], "count": SHARD_SIZE} for each in self.leases]
        message = {"incarnation": self.name, "dataset": DATASET, "request": self.request, "done": done}
        started = time.monotonic()
        answer = json.loads(await self.connection.call_raw(self.head, json.dumps(message).encode()))
        took_s = time.monotonic() - started
        if len(answer["leases"]) != 1 or answer["refused"]:
            raise RuntimeError(f"{self.name}: {answer}")
        self.num_units += bool(self.leases)
        self.leases = answer["leases"]
        return took_s

    async def work(self, since: float, until: float, think_s: float, took_s: list[float]) -> None:
        await asyncio.sleep(think_s * random.random())
        while time.monotonic() < until:
            unit_s = await self.unit()
            if since <= time.monotonic() < until:
                took_s.append(unit_s)
            await asyncio.sleep(think_s * random.uniform(0.5, 1.5))


async def load(workers: list[Worker], seconds: float, think_s: float) -> dict[str, float]:
    took_s: list[float] = []
    since = time.monotonic() + WARM_S
    await asyncio.gather(*(each.work(since, since + seconds, think_s, took_s) for each in workers))
    latency = statistics.quantiles(took_s, n=100)
    return {"per_s": len(took_s) / seconds, "p50_s": latency[49], "p99_s": latency[98]}


async def measure(url: str, token: str, pid: int, num_workers: int, seconds: float, think_s: float) -> dict[str, float]:
    town = Town(url, token)
    policy = wire.Policy(start_workers=num_workers, **POLICY)  # type: ignore[arg-type]
    await town.ask("PUT", "", wire.JobSpec(policy=policy))
    spec = wire.DatasetSpec(size=10**12, batch_size=BATCH_SIZE, minibatches_per_shard=MINIBATCHES)
    await town.ask("PUT", f"/datasets/{DATASET}", spec)
    workers = [Worker(town, number) for number in range(num_workers)]
    await gather_some([worker.begin for worker in workers])
    used_s = cpu_s(pid)
    found = await load(workers, seconds, think_s)
    units = sum(each.num_units for each in workers)
    found["cpu_per_unit_s"] = (cpu_s(pid) - used_s) / units  # of the coordinator's process
    found |= {f"most_{name}": value for name, value in (await load(workers, seconds, 0.0)).items()}
    (view,) = json.loads(await town.ask("GET", "/datasets", None))["datasets"]
    got = SHARD_SIZE * sum(each.num_units for each in workers)
    if view["done"] != got:
        raise RuntimeError(f"{view['done']} samples are done, but the workers got {got}")
    return found


def run(store: str | None, arguments: argparse.Namespace) -> dict[str, float]:
    with running_coordinator(store, arguments.directory) as at:
        return uvloop.run(measure(at.url, at.token, at.pid, arguments.workers, arguments.seconds, arguments.think_s))


@contextlib.contextmanager
def postgres() -> Iterator[str | None]:
    """A new server with its defaults, reached by a socket file; None if PostgreSQL is not installed."""
    found = shutil.which("initdb") or next(map(str, Path("/usr/lib/postgresql").glob("*/bin/initdb")), None)
    if not found:
        yield None
        return
    user = "postgres" if os.geteuid() == 0 else None  # the server refuses to run as root
    folder = Path(tempfile.mkdtemp(prefix="everstep-pg-"))
    if user:
        shutil.chown(folder, user)
    data, options = folder / "data", f"-k {folder} -c listen_addresses="
    programs: dict[str, Any] = {"user": user, "check": True, "stdout": subprocess.DEVNULL, "cwd": folder}
    binaries = Path(found).parent
    try:
        subprocess.run([binaries / "initdb", "-D", data, "-U", "everstep", "-A", "trust"], **programs)
        start = [binaries / "pg_ctl", "-D", data, "-o", options, "-l", folder / "log", "-w", "start"]
        subprocess.run(start, **programs)
        yield f"postgresql://everstep@/postgres?host={folder}"
    finally:
        subprocess.run([binaries / "pg_ctl", "-D", data, "-m", "fast", "stop"], **{**programs, "check": False})
        shutil.rmtree(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=5.0, help="how long calls are counted, each time")
    parser.add_argument("--think-s", type=float, default=0.4, help="how long a worker computes between two calls")
    parser.add_argument("--directory", help="where the store is, for a disk of your choice")
    arguments = parser.parse_args()
    found = {"sqlite": run(None, arguments)}
    with postgres() as url:
        if url:
            found["postgresql"] = run(url, arguments)
    flat = {f"{key}_{store}": value for store, values in found.items() for key, value in values.items()}
    for key, value in flat.items():
        print(f"{key:28s} {value:12.5f}")
    for key in ("per_s_postgresql", "p99_s_postgresql"):
        flat.setdefault(key, float("nan"))
    print(json.dumps({key: round(value, 6) if value == value else None for key, value in flat.items()}))


if __name__ == "__main__":
    main()
