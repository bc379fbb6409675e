"""How fast one coordinator notifies thousands of workers of a loss and of the next generation.

One coordinator process on loopback; all workers are simulated by this process, each with a connection of its own and
the calls that a real one makes: announce, arrive, watch, and after a loss arrive again. Then nodes of 8 workers with
their agents, which report, and keep a second connection warm: what does the coordinator do while nothing happens?
Prints a small table; the last line is JSON.

    python benchmarks/membership.py --workers 2000 --nodes 100"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import uvloop

from everstep import wire
from everstep.env import read_token

JOB = "benchmark"
WORKERS_OF_A_NODE = 8
WARM_S = 20.0  # as launcher/reporting.py
WATCH_S = 30.0  # as in engine/membership.py
TIMED_EACH = 8  # one in this many reports is timed
NUM_LOSSES = 5
CONCURRENT_SETUPS = 512
POLICY = {"heartbeat_s": 0.5, "lease_s": 30.0, "arrive_s": 20.0, "start_s": 600.0}

SERVE = """
import sys
from everstep.coordinator.edge.server import serve
store, token_file, ready_fd = sys.argv[1:]
serve("127.0.0.1", 0, store, token_file, ready_fd=int(ready_fd))
"""


class Connection(asyncio.Protocol):
    """One keep-alive HTTP connection with one call under way at most."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._answer: asyncio.Future[bytes] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        end = self._received.find(b"\r\n\r\n")
        if end < 0:
            return
        head = bytes(self._received[:end]).lower()
        start = head.index(b"content-length: ") + 16
        num_bytes = int(head[start:].partition(b"\r\n")[0])
        if len(self._received) < end + 4 + num_bytes:
            return
        body = bytes(self._received[end + 4 : end + 4 + num_bytes])
        self._received.clear()
        answer, self._answer = self._answer, None
        if answer is None or answer.done():
            return  # the worker that asked is gone
        if not head.startswith(b"http/1.1 200"):
            answer.set_exception(RuntimeError(f"{head!r} {body!r}"))
        else:
            answer.set_result(body)

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer and not self._answer.done():
            self._answer.set_exception(error or ConnectionResetError("the coordinator hung up"))

    def call(self, head: bytes, message: Any) -> asyncio.Future[bytes]:
        return self.call_raw(head, b"" if message is None else wire.to_json(message))

    def call_raw(self, head: bytes, body: bytes) -> asyncio.Future[bytes]:
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(head + b"content-length: %d\r\n\r\n" % len(body) + body)
        return self._answer

    def close(self) -> None:
        self._transport.close()


class Town:
    """All simulated workers, and their measurements."""

    def __init__(self, url: str, token: str, job: str = JOB) -> None:
        self.job = job
        self.lives: list[asyncio.Task[None]] = []
        self.address = urlsplit(url).hostname, urlsplit(url).port
        self._tail = f" HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\ncontent-type: application/json\r\n"
        self.workers: list[Worker] = []
        self.lateness_s: list[float] = []
        self.is_measuring = False
        self.setups = asyncio.Semaphore(CONCURRENT_SETUPS)
        self.num_formed = 0
        self.formed = asyncio.Event()
        self.size = 0  # how many of a generation's workers this process simulates; 0: all

    def head(self, method: str, path: str, job: str | None = None) -> bytes:
        root = f"/v1/jobs/{self.job}" if job is None else "/v1"
        return f"{method} {root}{path}{self._tail}".encode()

    def live(self, life: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(life)
        task.add_done_callback(_raise)
        self.lives.append(task)
        return task

    async def end(self) -> None:
        for life in self.lives:
            life.cancel()
        await asyncio.gather(*self.lives, return_exceptions=True)

    async def connect(self) -> Connection:
        _, connection = await asyncio.get_running_loop().create_connection(Connection, *self.address)
        return connection

    async def ask(self, method: str, path: str, message: Any) -> bytes:
        connection = await self.connect()
        try:
            return await connection.call(self.head(method, path), message)
        finally:
            connection.close()

    def count_formed(self, size: int) -> None:
        self.num_formed += 1
        if self.num_formed == (self.size or size):
            self.formed.set()

    async def all_formed(self) -> None:
        await self.formed.wait()
        self.formed.clear()
        self.num_formed = 0


class Worker:
    def __init__(self, town: Town, number: int) -> None:
        self.town, self.number = town, number
        self.generation = self.settled = self.seen = 0
        self.told_at = 0.0
        self.life: asyncio.Task[None]

    async def begin(self) -> None:
        request = wire.ReserveWorker(agent=f"a{self.number // 8}", request=str(self.number))
        answer = await self.town.ask("POST", "/workers", request)
        await self.announce(json.loads(answer)["worker"])

    async def announce(self, name: str) -> None:
        self.name = name
        self.connection = await self.town.connect()
        self.heads = {call: self.town.head("POST", f"/workers/{self.name}/{call}") for call in CALLS}
        await self.call(
            "announce",
            wire.Announce(incarnation=self.name, pid=1, address="127.0.0.1", store_port=1, probe_port=2),
        )

    async def call(self, call: str, message: Any) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(await self.connection.call(self.heads[call], message))
        return answer

    async def live(self) -> None:
        while True:
            await self.arrive()
            await self.watch()

    async def arrive(self) -> None:
        message = wire.Arrive(
            incarnation=self.name, generation=self.generation, settled=self.settled, step=1, max_workers=None,
            wait_s=WATCH_S,
        )  # fmt: skip
        while not (answer := await self.call("arrive", message))["is_formed"]:
            pass
        self.generation = answer["generation"]
        self.town.count_formed(answer["size"])

    async def watch(self) -> None:
        """Heartbeats until the generation is closed; measures how late a reply without news is."""
        is_closed = False
        while not is_closed:
            message = wire.Watch(
                incarnation=self.name, generation=self.generation, seen=self.seen, step=1, phase=wire.COMPUTING,
                phase_s=0.1, longest_step_s=1.0, longest_wait_s=1.0, wait_s=WATCH_S,
            )  # fmt: skip
            started = time.monotonic()
            answer = await self.call("watch", message)
            is_closed = answer["is_closed"]
            if self.town.is_measuring and answer["seen"] == self.seen:
                self.town.lateness_s.append(time.monotonic() - started - POLICY["heartbeat_s"])
            self.seen = answer["seen"]
        self.told_at = time.monotonic()


CALLS = ("announce", "arrive", "watch")


class Agent:
    """A node's agent, with the calls that launcher/reporting.py makes. Its workers train: each of its reports says how
    far all of them are. A few of its reports ask not to be held, and these are timed."""

    def __init__(self, town: Town, number: int, num_workers: int = WORKERS_OF_A_NODE) -> None:
        self.town, self.name, self.number, self.num_workers = town, f"node-{number}", number, num_workers
        self.workers: list[Worker] = []
        self.peers_seen = self.num_reports = self.after = 0
        self.report_s, self.has_begun = 1.0, False
        self.round_trips_s: list[tuple[float, float]] = []  # when, and how long

    def lives(self) -> list[Coroutine[Any, Any, None]]:
        return [self.report(), self.keep_warm()]

    async def report(self) -> None:
        connection, head = await self.town.connect(), self.town.head("POST", f"/agents/{self.name}/report")
        while True:
            self.num_reports += 1
            is_timed = (self.num_reports + self.number) % TIMED_EACH == 0
            report = wire.AgentReport(
                incarnation=self.name, node=self.name, workers=[self.state_of(each) for each in self.workers],
                number=self.num_reports, after=self.after, wait_s=0.0 if is_timed else self.report_s,
                num_workers=self.num_workers, address=f"10.0.{self.number // 256}.{self.number % 256}", probe_port=1,
                free_port=2, peers_seen=self.peers_seen,
            )  # fmt: skip
            asked_at = time.monotonic()
            orders = json.loads(await connection.call(head, report))
            if is_timed:
                self.round_trips_s.append((asked_at, time.monotonic() - asked_at))
            self.after = 0 if orders["wants_all"] else self.num_reports
            self.peers_seen, self.report_s = orders["peers_seen"], orders["report_s"]
            if orders["start"] and not self.has_begun:
                self.has_begun = True
                for name in orders["start"][0]["workers"]:
                    worker = Worker(self.town, 0)
                    worker.life = self.town.live(self.run(worker, name))

    def state_of(self, worker: Worker) -> wire.WorkerState:
        return wire.WorkerState(
            worker=worker.name, is_running=True, has_progress=True, step=self.num_reports, phase=wire.COMPUTING,
            phase_s=0.1, longest_step_s=1.0, longest_wait_s=1.0,
        )  # fmt: skip

    async def run(self, worker: Worker, name: str) -> None:
        async with self.town.setups:
            await worker.announce(name)
        self.workers.append(worker)
        await worker.live()

    async def keep_warm(self) -> None:
        connection, head = await self.town.connect(), self.town.head("GET", "/health", job="")
        while True:
            await connection.call(head, None)
            await asyncio.sleep(WARM_S)


async def gather_some(makers: list[Callable[[], Coroutine[Any, Any, None]]]) -> None:
    limit = asyncio.Semaphore(CONCURRENT_SETUPS)

    async def one(make: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async with limit:
            await make()

    await asyncio.gather(*map(one, makers))


async def measure(url: str, token: str, pid: int, num_workers: int, seconds: float) -> dict[str, float]:
    town = Town(url, token)
    policy = wire.Policy(start_workers=num_workers, **POLICY)  # type: ignore[arg-type]
    await town.ask("PUT", "", wire.JobSpec(policy=policy))
    started = time.monotonic()
    workers = [Worker(town, number) for number in range(num_workers)]
    await gather_some([worker.begin for worker in workers])
    setup_s = time.monotonic() - started
    lives = [asyncio.create_task(worker.live()) for worker in workers]
    for life in lives:
        life.add_done_callback(_raise)
    started = time.monotonic()
    await town.all_formed()
    formed_s = time.monotonic() - started
    before_s = cpu_s(pid)
    rate = await _heartbeats(town, seconds)
    heartbeat_cpu_s = (cpu_s(pid) - before_s) / len(town.lateness_s)
    before_s = cpu_s(pid)
    told_s = [await _loss(town, workers, lives) for _ in range(NUM_LOSSES)]
    told_cpu_s = (cpu_s(pid) - before_s) / NUM_LOSSES
    for life in lives:
        life.cancel()
    await asyncio.gather(*lives, return_exceptions=True)
    lateness = statistics.quantiles(town.lateness_s, n=100)
    return {
        "workers": num_workers,
        "setup_s": setup_s,
        "first_formed_s": formed_s,
        "told_s": statistics.median(told_s),
        "told_worst_s": max(told_s),
        "told_cpu_s": told_cpu_s,  # of the coordinator's process
        "heartbeats_per_s": rate,
        "heartbeat_cpu_s": heartbeat_cpu_s,
        "p50_s": max(0.0, lateness[49]),
        "p99_s": max(0.0, lateness[98]),
    }


async def measure_rest(url: str, token: str, pid: int, num_nodes: int, seconds: float) -> dict[str, float]:
    """The coordinator's processor time while nothing happens."""
    town = Town(url, token, "rest")
    num_workers = num_nodes * WORKERS_OF_A_NODE
    policy = wire.Policy(
        start_nodes=num_nodes, min_nodes=num_nodes, max_nodes=num_nodes, start_workers=num_workers,
        lease_s=60.0, arrive_s=60.0, start_s=600.0, stall_s=600.0,
    )  # fmt: skip
    await town.ask("PUT", "", wire.JobSpec(policy=policy))
    for number in range(num_nodes):
        for life in Agent(town, number).lives():
            town.live(life)
    await town.all_formed()
    await asyncio.sleep(2.0)  # until all have heard of it
    before_s, started = cpu_s(pid), time.monotonic()
    await asyncio.sleep(seconds)
    cores = (cpu_s(pid) - before_s) / (time.monotonic() - started)
    await town.end()
    return {"nodes": num_nodes, "rest_cores": cores}


async def _heartbeats(town: Town, seconds: float) -> float:
    town.is_measuring, started = True, time.monotonic()
    await asyncio.sleep(seconds)
    town.is_measuring = False
    return len(town.lateness_s) / (time.monotonic() - started)


async def _loss(town: Town, workers: list[Worker], lives: list[asyncio.Task[None]]) -> float:
    """One worker dies; until the last of the others has the new generation."""
    worker = workers.pop()
    forgive(lives.pop())
    worker.connection.close()
    started = time.monotonic()
    path = f"/workers/{worker.name}/exited"
    await asyncio.gather(town.ask("POST", path, wire.WorkerExit(exit_code=-9)), town.all_formed())
    return time.monotonic() - started


def forgive(life: asyncio.Task[None]) -> None:
    """Expect that it ends."""
    life.remove_done_callback(_raise)
    life.cancel()


def _raise(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()):
        print(f"a simulated worker failed: {error}", file=sys.stderr, flush=True)
        os._exit(1)


@dataclass(frozen=True, kw_only=True)
class RunningCoordinator:
    url: str
    token: str
    pid: int


@contextlib.contextmanager
def running_coordinator(store: str | None = None, directory: str | None = None) -> Iterator[RunningCoordinator]:
    """A process of its own, on loopback. Without the URL of a `store`, it keeps a file in `directory` until the end."""
    raise_file_limit()
    with tempfile.TemporaryDirectory(prefix="everstep-bench-", dir=directory) as name:
        process, url = _start(Path(name), store or str(Path(name) / "store.db"))
        try:
            yield RunningCoordinator(url=url, token=read_token(Path(name) / "token"), pid=process.pid)
        finally:
            process.terminate()
            process.wait()


def raise_file_limit() -> None:
    """Raise the limit on open files: each connection is a file."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def show(found: dict[str, float]) -> None:
    """As a table, and as JSON in the last line."""
    for key, value in found.items():
        print(f"{key:20s} {value:10.5f}")
    print(json.dumps({key: round(value, 6) for key, value in found.items()}))


def _start(folder: Path, store: str) -> tuple[subprocess.Popen[bytes], str]:
    ready, ready_fd = os.pipe()
    command = [sys.executable, "-c", SERVE, store, str(folder / "token"), str(ready_fd)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])}
    process = subprocess.Popen(command, pass_fds=[ready_fd], env=environment, stdout=subprocess.DEVNULL)
    os.close(ready_fd)
    with os.fdopen(ready) as lines:
        return process, lines.readline().strip()


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2000)
    parser.add_argument("--nodes", type=int, default=100, help="of 8 workers each, with their agents, at rest")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long heartbeats are counted")
    arguments = parser.parse_args()
    found = dict[str, float]()
    with running_coordinator() as at:
        if arguments.workers:
            found |= uvloop.run(measure(at.url, at.token, at.pid, arguments.workers, arguments.seconds))
        if arguments.nodes:
            found |= uvloop.run(measure_rest(at.url, at.token, at.pid, arguments.nodes, 2 * arguments.seconds))
    show(found)


if __name__ == "__main__":
    main()
