"""A pool whose nodes are hosts with networks of their own, and experiments on it: what random harm must not change.

The coordinator, and the story itself, are on host 0; each agent is on the host of its name: `h1`, `h2`, …
Checkpoints are in a folder that all hosts see."""

from __future__ import annotations

import random
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import pytest

from everstep.process import Child
from everstep.testing import can_make_hosts
from everstep.testing.network import Network
from lab.command import EVERSTEP, run
from lab.experiment_stage import StagedExperiments, Story, number_of
from lab.pool_stage import PoolStage
from lab.processes import are_gone

needs_hosts = pytest.mark.skipif(not can_make_hosts(), reason="needs root, iproute2 and nftables")
PORT = 7070
T = TypeVar("T")


class PoolHosts(StagedExperiments, PoolStage):
    def __init__(self, folder: Path, network: Network, **env: str) -> None:
        super().__init__(folder, GATES_FOLDER=str(folder / "gates"), **env)
        self.network = network
        self.start_service = Child.start  # in the network of this thread: a fork would be in its nursery's
        self.prepare(folder)
        self._sockets = tempfile.TemporaryDirectory(prefix="everstep-")  # a socket's name may not be long

    def __enter__(self) -> PoolHosts:
        address = self.network.address(0)
        self._port, self.url = PORT, f"http://{address}:{PORT}"
        self.serve_words = ["--host", address]
        self.start_coordinator()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for host in range(1, self.network.num_hosts + 1):
            self.network.kill_all(host)
        for each in self.agents.values():
            each.process.kill()
        self.coordinator.end()
        self._sockets.cleanup()

    def _at(self, name: str) -> list[str]:
        """Nurseries that stay warm are the host's own."""
        sockets = Path(self._sockets.name) / name
        sockets.mkdir(exist_ok=True)
        return [*self.network.inside(host_of(name)), "env", f"XDG_RUNTIME_DIR={sockets}"]

    # --- experiments

    def create(self, file: str) -> int:
        words = ("e", "create", f"code/{file}", "code", "--coordinator", self.url, "--token-file", self.token_file)
        done = run(*EVERSTEP, *words, folder=self.folder, **self._env)
        assert done.returncode == 0, done.stdout + done.stderr
        return number_of(done.stdout + done.stderr)

    def write(self, name: str, searcher: dict[str, Any], **more: Any) -> str:
        return super().write(name, searcher, checkpoint={"uri": str(self.folder / "checkpoints")}, **more)

    def end_of(self, number: int) -> tuple[int, Story]:
        self.trials.wait_state(number, "COMPLETED", "ERROR", "CANCELED")
        return self.winner(number), self.story(number)

    # --- nodes

    @property
    def present(self) -> set[str]:
        return {each.agent for each in self.trials.pool().agents if each.is_present}

    def crash(self, name: str) -> None:
        """All its processes, at once."""
        self.network.kill_all(host_of(name))

    def drain(self, name: str) -> None:
        """Its trials leave after their steps, and then it leaves the pool."""
        self.agents[name].signal(signal.SIGTERM)

    def free_host(self) -> str:
        """One without an agent that runs."""
        running = {name for name, each in self.agents.items() if each.process.wait(0) is None}
        return next(f"h{host}" for host in range(1, self.network.num_hosts + 1) if f"h{host}" not in running)

    def restart_coordinator(self) -> None:
        self.kill_coordinator()
        self.coordinator.process.wait()
        self.start_coordinator()


def host_of(name: str) -> int:
    return int(name.removeprefix("h"))


def play(folder: Path, num_hosts: int, story: Callable[[PoolHosts], T], **env: str) -> T:
    """With a network of its own for the time of the story."""
    with Network(num_hosts) as network:

        def tell() -> T:
            with PoolHosts(folder, network, **env) as stage:
                return story(stage)

        return network.within(0, tell)


# --- harm

KINDS = ("worker", "coordinator", "node", "leave")


class Harm:
    """At gates of a search, one after the other: a worker, the coordinator or a whole node is killed, or a node leaves
    and is replaced by another."""

    def __init__(self, stage: PoolHosts, chance: random.Random) -> None:
        self.stage, self.chance = stage, chance

    def do(self, kind: str, trial: int, batch: int) -> None:
        worker = self._held(trial, batch)
        gate = self.stage.gates / f"gate-{trial}-{batch}"
        if kind == "worker":
            self.stage.kill(worker)
        elif kind == "coordinator":
            self.stage.restart_coordinator()
        elif kind == "node":
            self._kill_a_node()
        else:
            self._replace_a_node()
        gate.unlink()

    def _held(self, trial: int, batch: int) -> int:
        """The process that waits there now."""
        pid = self.stage.wait_held(trial, batch)
        return self.stage.wait_held(trial, batch, but=pid) if are_gone([pid]) else pid

    def _kill_a_node(self) -> None:
        """It is started again: only then is it known that nothing runs there any more. Meanwhile, the coordinator may
        be killed, too."""
        victim = self.chance.choice(sorted(self.stage.present))
        self.stage.crash(victim)
        if self.chance.random() < 0.5:
            self.stage.restart_coordinator()
        self.stage.join(victim)

    def _replace_a_node(self) -> None:
        """The new one joins first or last, so that a pool of one node is empty in between, or has two."""
        victim, new = self.chance.choice(sorted(self.stage.present)), self.stage.free_host()
        steps = [lambda: self.stage.drain(victim), lambda: self.stage.join(new)]
        for step in steps if self.chance.random() < 0.5 else reversed(steps):
            step()
