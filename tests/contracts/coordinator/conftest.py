"""A coordinator as a real process, and workers that are nothing but their calls."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from everstep import wire
from everstep.client.calls import Coordinator
from everstep.env import read_token
from lab.pool_puppets import Perform, performer

SERVE = """
import sys
from pathlib import Path
from everstep.coordinator.edge.server import serve
port, store, token_file, ready_fd, *tls = sys.argv[1:]
tls = dict(zip(("tls_cert", "tls_key"), map(Path, tls)))
serve("127.0.0.1", int(port), store, token_file, ready_fd=int(ready_fd), **tls)
"""


class HeldPort:
    """A port that stays with a coordinator also while that is dead: the kernel gives it to nobody else meanwhile."""

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the coordinator's has: both may bind
        self._socket.bind(("127.0.0.1", 0))
        self.number = self._socket.getsockname()[1]

    def close(self) -> None:
        self._socket.close()


class Server:
    def __init__(self, folder: Path, store: str, tls: Sequence[Path] = (), *, before: str = "") -> None:
        """`tls`: certificate and key. `before`: what its process does first, such as setting a limit within reach."""
        self._tls, self._code = tls, before + SERVE
        self.store, self.token_file, self.log_file = store, folder / "token", folder / "log"
        self._held_port = HeldPort()
        self.port = self._held_port.number
        self.start()

    def start(self) -> None:
        ready, ready_fd = os.pipe()
        given = [self.port, self.store, self.token_file, ready_fd, *self._tls]
        command = [sys.executable, "-c", self._code, *map(str, given)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(command, pass_fds=[ready_fd], env=environment, stdout=log, stderr=log)
        os.close(ready_fd)
        with os.fdopen(ready) as lines:
            self.url = lines.readline().strip()
        if not self.url:
            self._held_port.close()
            self.process.wait(60)
            raise AssertionError(self.log_file.read_text())

    @property
    def token(self) -> str:
        return read_token(self.token_file)

    def kill(self) -> None:
        """As hard as it gets; it may be started again."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(60)

    def end(self) -> None:
        self.kill()
        self._held_port.close()

    def stop(self) -> int:
        self._held_port.close()
        self.process.terminate()
        return self.process.wait(60)


class Puppet:
    """One worker of a job: remembers what a real one would remember, and calls what it is told to call."""

    def __init__(self, coordinator: Coordinator, request: str = "") -> None:
        self._coordinator = coordinator
        self.name = coordinator.reserve(wire.ReserveWorker(agent="a0", request=request or uuid.uuid4().hex)).worker
        self.incarnation = uuid.uuid4().hex
        self.generation = self.settled_in = self.step = self.seen = self.state_bytes = 0

    def announce(self) -> wire.Announced:
        return self._coordinator.announce(
            self.name,
            wire.Announce(
                incarnation=self.incarnation, pid=os.getpid(), address="127.0.0.1", store_port=1, probe_port=2
            ),
        )

    def arrive_once(self, wait_s: float = 0.0) -> wire.Arrived:
        return self._coordinator.arrive(
            self.name,
            wire.Arrive(
                incarnation=self.incarnation,
                generation=self.generation,
                settled=self.settled_in,
                step=self.step,
                max_workers=None,
                wait_s=wait_s,
            ),
        )

    def arrive(self, deadline_s: float = 60.0) -> wire.Arrived:
        """Until a generation is formed, as a real worker does."""
        deadline = time.monotonic() + deadline_s
        while time.monotonic() < deadline:
            answer = self.arrive_once()
            if answer.is_formed or answer.is_stopped:
                self.generation = answer.generation
                return answer
        raise AssertionError(f"{self.name}: no generation was formed: {answer.reason}")

    def settle(self) -> None:
        self.settled_in = self.generation
        self._coordinator.settled(
            self.name,
            wire.Settled(incarnation=self.incarnation, generation=self.generation, step=self.step),
        )

    def watch(self, phase: str = wire.OUTSIDE, phase_s: float = 0.0, wait_s: float = 0.0) -> wire.Watched:
        answer = self._coordinator.watch(
            self.name,
            wire.Watch(
                incarnation=self.incarnation,
                generation=self.generation,
                seen=self.seen,
                step=self.step,
                phase=phase,
                phase_s=phase_s,
                longest_step_s=0.0,
                longest_wait_s=0.0,
                state_bytes=self.state_bytes,
                wait_s=wait_s,
            ),
        )
        self.seen = answer.seen
        return answer

    def leave(self) -> wire.Left:
        return self._coordinator.leave(
            self.name,
            wire.Leave(incarnation=self.incarnation, generation=self.generation, step=self.step, reason="done"),
        )

    def break_(self, reason: str, *, must_probe: bool = False) -> None:
        self._coordinator.broken(
            self.name,
            wire.Broken(incarnation=self.incarnation, generation=self.generation, reason=reason, must_probe=must_probe),
        )

    def exit(self, code: int, *, step: int = 0, micro_batch: int = -1) -> None:
        self._coordinator.exited(self.name, wire.WorkerExit(exit_code=code, step=step, micro_batch=micro_batch))


def together(*calls: Callable[[], object]) -> list[object]:
    """All at the same time, as workers do."""
    with ThreadPoolExecutor(len(calls)) as threads:
        return [future.result(90) for future in [threads.submit(call) for call in calls]]


PATIENT = {"lease_s": 60.0, "arrive_s": 60.0}  # a puppet whose strings are not pulled for a while is not lost for it


class Play:
    """One job on a server."""

    def __init__(self, server: Server, **policy: object) -> None:
        self.server = server
        self.coordinator = Coordinator(server.url, server.token, f"job-{uuid.uuid4().hex[:8]}")
        self.coordinator.create_job(wire.JobSpec(policy=wire.Policy(**(PATIENT | policy))))  # type: ignore[arg-type]

    def puppets(self, number: int) -> list[Puppet]:
        puppets = [Puppet(self.coordinator) for _ in range(number)]
        for puppet in puppets:
            puppet.announce()
        return puppets

    def training(self, number: int) -> list[Puppet]:
        """So many workers in one settled generation."""
        puppets = self.puppets(number)
        together(*(puppet.arrive for puppet in puppets))
        for puppet in puppets:
            puppet.settle()
        return puppets

    together = staticmethod(together)

    def view(self) -> wire.JobView:
        return self.coordinator.view()

    def statuses(self) -> dict[str, str]:
        return {worker.worker: worker.status for worker in self.view().workers}


@pytest.fixture
def puppet_class() -> type[Puppet]:
    return Puppet


@pytest.fixture
def held_port() -> Iterator[int]:
    with closing(HeldPort()) as port:
        yield port.number


@pytest.fixture(scope="session")
def server_class() -> type[Server]:
    return Server


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Each story runs once per kind of store."""
    if request.param == "postgresql":
        return str(request.getfixturevalue("postgres_url"))
    return str(tmp_path_factory.mktemp("store") / "store.db")


@pytest.fixture(scope="module")
def server_on_each_store(tmp_path_factory: pytest.TempPathFactory, store_url: str) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("coordinator"), store_url)
    yield server
    server.stop()
    assert "Traceback" not in server.log_file.read_text(), server.log_file.read_text()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("coordinator")
    server = Server(folder, str(folder / "store.db"))
    yield server
    assert server.stop() == -signal.SIGTERM, (
        server.log_file.read_text()
    )  # ended in good order, then by what it was sent
    log = server.log_file.read_text()
    assert "Traceback" not in log, log
    assert server.token not in log


@pytest.fixture
def play(server: Server) -> Iterator[Callable[..., Play]]:
    plays = []

    def begin(on: Server = server, **policy: object) -> Play:
        plays.append(Play(on, **policy))
        return plays[-1]

    yield begin
    for each in plays:
        each.coordinator.close()


@pytest.fixture(scope="module")
def postgres_url() -> Iterator[str]:
    """A PostgreSQL cluster of our own in a folder of its own, reached by a socket file."""
    found = shutil.which("initdb") or next(map(str, Path("/usr/lib/postgresql").glob("*/bin/initdb")), None)
    assert found, "no PostgreSQL server here: apt-get install postgresql (make setup does)"
    binaries = Path(found).parent
    user = "postgres" if os.geteuid() == 0 else None  # the server refuses to run as root
    folder = Path(tempfile.mkdtemp(prefix="everstep-pg-"))
    if user:
        shutil.chown(folder, user)
    data, options = folder / "data", f"-k {folder} -c listen_addresses= -c fsync=off"
    run = {"user": user, "check": True, "stdout": subprocess.DEVNULL, "cwd": folder}
    try:
        subprocess.run([binaries / "initdb", "-D", data, "-U", "everstep", "-A", "trust", "--no-sync"], **run)
        subprocess.run([binaries / "pg_ctl", "-D", data, "-o", options, "-l", folder / "log", "-w", "start"], **run)
        yield f"postgresql://everstep@/postgres?host={folder}"
    finally:
        subprocess.run([binaries / "pg_ctl", "-D", data, "-m", "immediate", "stop"], **{**run, "check": False})
        shutil.rmtree(folder)


@pytest.fixture
def perform(store_url: str) -> Perform:
    """Perform a story on a pool of its own, on each store."""
    return performer(store_url)
