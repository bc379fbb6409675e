"""What readers of the live stream cost heartbeats: 100 browsers that follow a job, while it reports metrics.

The readers are one process of their own, so that reading is not part of the figure. Workers, heartbeats and reporters
are those of `benchmarks/metrics.py`, on SQLite; phases with and without readers alternate. A heartbeat's figure is the
time of its call. Prints a line per phase; the last line is JSON.

    python benchmarks/stream_readers.py --workers 200 --readers 100 --seconds 10"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import uvloop

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.leases import BATCH_SIZE, DATASET, MINIBATCHES, POLICY
from benchmarks.membership import Town, cpu_s, gather_some, start_coordinator
from benchmarks.metrics import NUM_REPORTERS, Reporter, Worker, lives
from everstep import wire
from everstep.env import read_token

NUM_PHASES = 3  # of each kind


class _Reader(asyncio.Protocol):
    def __init__(self, head: bytes) -> None:
        self._head, self.num_bytes, self.num_events, self.is_cut = head, 0, 0, False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.write(self._head)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        self.num_bytes += len(data)
        self.num_events += data.count(b"event: ")

    def connection_lost(self, error: Exception | None) -> None:
        self.is_cut = True


async def _read(url: str, token: str, job: str, number: int) -> None:
    """Until stdin ends. Prints what was read."""
    where = urlsplit(url)
    head = f"GET /v1/stream?jobs={job} HTTP/1.1\r\nhost: {where.netloc}\r\nauthorization: Bearer {token}\r\n\r\n"
    loop = asyncio.get_running_loop()
    made = [
        await loop.create_connection(lambda: _Reader(head.encode()), where.hostname, where.port) for _ in range(number)
    ]
    readers = [reader for _, reader in made]
    while not all(reader.num_events for reader in readers):
        await asyncio.sleep(0.01)
    print("ready", flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    found = {
        "reader_events": sum(each.num_events for each in readers) / number,
        "reader_bytes": sum(each.num_bytes for each in readers) / number,
        "readers_cut": sum(each.is_cut for each in readers),
    }
    print(json.dumps(found), flush=True)


@contextmanager
def following(url: str, token: str, job: str, number: int) -> Iterator[dict[str, float]]:
    """Readers of a job's stream, in a process of their own; afterwards, what each of them has read."""
    process = subprocess.Popen(
        [sys.executable, __file__, "--read", url, job, str(number)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    found: dict[str, float] = {}
    try:
        process.stdin.write(f"{token}\n")
        process.stdin.flush()
        assert process.stdout.readline() == "ready\n"
        yield found
        found |= json.loads(process.communicate()[0])
    finally:
        process.kill()
        process.wait()


async def measure(url: str, token: str, pid: int, arguments: argparse.Namespace) -> dict[str, float]:
    town = Town(url, token)
    policy = wire.Policy(start_workers=arguments.workers + 1, **POLICY)  # type: ignore[arg-type]
    await town.ask("PUT", "", wire.JobSpec(policy=policy))
    spec = wire.DatasetSpec(size=10**12, batch_size=BATCH_SIZE, minibatches_per_shard=MINIBATCHES)
    await town.ask("PUT", f"/datasets/{DATASET}", spec)
    workers = [Worker(town, number) for number in range(arguments.workers)]
    await gather_some([worker.begin for worker in workers])
    reporters = [Reporter(town, workers[number].name, number) for number in range(NUM_REPORTERS)]

    async def phase() -> tuple[list[float], float, float]:
        """The times of heartbeats, points per second, and the coordinator's cores."""
        since = time.monotonic()
        until, used_s = since + arguments.seconds, cpu_s(pid)
        beating = asyncio.create_task(lives(workers, until))
        counts = await asyncio.gather(*(each.report(since, until) for each in reporters))
        return await beating, sum(counts) / arguments.seconds, (cpu_s(pid) - used_s) / arguments.seconds

    alone: list[tuple[list[float], float, float]] = []
    read: list[tuple[list[float], float, float]] = []
    for _ in range(NUM_PHASES):
        alone.append(await phase())
        with following(url, token, town.job, arguments.readers) as told:
            read.append(await phase())
        for name, (beats, points, cores) in (("alone", alone[-1]), ("read", read[-1])):
            print(f"{name:8s} p99 {_p99(beats):.4f} s, {points:8.0f} points/s, {cores:.2f} cores", flush=True)
    found: dict[str, float] = {
        "readers": arguments.readers,
        "reader_heartbeat_p99_s": statistics.median(_p99(beats) for beats, _, _ in read),
        "alone_heartbeat_p99_s": statistics.median(_p99(beats) for beats, _, _ in alone),
        "reader_points_per_s": statistics.median(points for _, points, _ in read),
        "alone_points_per_s": statistics.median(points for _, points, _ in alone),
    }
    return found | told


def _p99(beats: list[float]) -> float:
    return statistics.quantiles(beats, n=100)[98]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=200)
    parser.add_argument("--readers", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each phase")
    parser.add_argument("--read", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.read:
        url, job, number = arguments.read
        uvloop.run(_read(url, sys.stdin.readline().strip(), job, int(number)))
        return
    with tempfile.TemporaryDirectory(prefix="everstep-bench-") as name:
        folder = Path(name)
        process, url = start_coordinator(folder, None)
        try:
            found = uvloop.run(measure(url, read_token(folder / "token"), process.pid, arguments))
        finally:
            process.terminate()
            process.wait()
    print(json.dumps({key: round(value, 6) for key, value in found.items()}))


if __name__ == "__main__":
    main()
