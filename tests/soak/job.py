"""A job that is disturbed: who is in it, who of them holds the state, and what waits to be undone.

What it knows of workers comes from what they tell by themselves (task.py): events may be lost, and the coordinator may
be away."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from everstep.process import ENDED, Child, process_state
from everstep.testing.cluster import JOB, Cluster, ClusterError
from everstep.wire import Policy
from lab.stage import Stage
from soak.disks import Disk
from soak.facts import Facts
from soak.schedule import LEASE_S, Schedule

# Micro-batches die as often as chance wills. A node that is gone may train on for fence_s: for so long, nobody begins
# anew.
POLICY = Policy(heartbeat_s=0.3, lease_s=LEASE_S, arrive_s=20.0, stall_s=6.0, fence_s=30.0, micro_batch_deaths=1000)
DISKS_MB = {"events": 4, "logs": 2, "checkpoints": 2}
_LAST_CALL = 0.9  # of the training: what is done to it later may meet its end, where other rules hold
_SILENCE_S, _END_S = 300.0, 3000.0  # without a word of any worker, and in all: it hangs, however busy the machine is
_LOOK_S = 0.02


class TooLate(Exception):
    """The training is nearly over."""


class DisturbedJob(Stage):
    def __init__(self, schedule: Schedule) -> None:
        directory = Path(tempfile.mkdtemp(prefix="everstep-")).resolve()
        self.facts = Facts(directory / "facts.jsonl")
        self.checkpoints = directory / "checkpoints"
        self._disks = {name: Disk(directory / f"disk-{name}", size_mb) for name, size_mb in DISKS_MB.items()}
        self._recovered_at: dict[str, float] = {}  # by worker
        self._pending: dict[str, tuple[float, Callable[[], None]]] = {}  # by whom or what it was done to
        super().__init__(
            *arguments(schedule),
            "--loaders",
            schedule.num_loaders,
            script=str(script_of(schedule)),
            workers=schedule.num_workers,
            hosts=schedule.num_hosts or None,
            max_restarts=schedule.max_restarts,
            policy=POLICY,
            env={"SOAK_FACTS": str(self.facts.path), **({"EVERSTEP_NURSERY": "off"} if schedule.num_hosts else {})},
            directory=directory,
        )

    def _environment(self) -> dict[str, str]:
        return super()._environment() | {"SOAK_NODE": f"node{len(self._nodes) + 1}"}

    def __enter__(self) -> Cluster:
        for disk in self._disks.values():
            disk.mount()
        self._lay("events", "events.jsonl")
        self._lay("checkpoints", "checkpoints", is_folder=True)
        self._lay("logs", JOB, is_folder=True)
        self._lay("logs", "coordinator.log")
        return super().__enter__()

    def _lay(self, disk: str, name: str, *, is_folder: bool = False) -> None:
        """Have what is usually in the job's directory on a disk of its own."""
        place = self._disks[disk].folder / name
        if is_folder:
            place.mkdir()
        (self.directory / name).symlink_to(place)

    def close(self) -> None:
        super().close()
        for disk in self._disks.values():
            disk.unmount()
        shutil.rmtree(self.directory)

    def start_coordinator(self) -> None:
        self._open_logs()
        super().start_coordinator()

    def _start_node(self, num_workers: int, host: int | None) -> str:
        self._open_logs()
        self._lay("logs", f"node{len(self._nodes) + 1}.log")
        return super()._start_node(num_workers, host)

    def _open_logs(self) -> None:
        """What we start writes to a log that we open."""
        if self._disks["logs"].is_read_only:
            self.undo("logs")

    # --- who is there -----------------------------------------------------------------------------------

    def living(self) -> list[str]:
        """Who runs, and has not been hurt."""
        return sorted(
            fact["worker"]
            for fact in self.facts.of("started")
            if fact["worker"] not in self.harmed and process_state(fact["pid"]) != ENDED
        )

    def holders(self) -> set[str]:
        """Those of them who hold the state of the newest step, or of the one before."""
        steps = self.facts.of("step")
        newest = max((fact["step"] for fact in steps), default=0)
        told = {
            fact["worker"]
            for fact in steps
            if fact["step"] >= newest - 1 and fact["t"] > self._recovered_at.get(fact["worker"], 0.0)
        }
        return told & set(self.living())

    def pid_of(self, worker: str) -> int:
        return int(next(fact["pid"] for fact in self.facts.of("started") if fact["worker"] == worker))

    def agent_of(self, node: str) -> Child:
        return next(each.agent for each in self._nodes if each.name == node)

    def _on_node(self, node: str) -> set[str]:
        return {fact["worker"] for fact in self.facts.of("started") if fact["node"] == node}

    def _on_host(self, host: int) -> set[str]:
        return {worker for node in self._nodes if node.host == host for worker in self._on_node(node.name)}

    # --- whom it meets: somebody else will still hold the state -----------------------------------------

    def victims(self, number: int, pick: int) -> list[str]:
        if not self.living():
            self.undo_all()
            self.until(lambda: self.is_too_late() or bool(self.living()), "anybody")
        self.check_time()
        chosen = _chosen(self.living(), number, pick)
        self._keep_holder(chosen)
        return chosen

    def victim_node(self, pick: int) -> tuple[str, set[str]]:
        """One that still has a worker, and all workers that it ever had."""
        (worker,) = self.victims(1, pick)
        (node,) = (fact["node"] for fact in self.facts.of("started") if fact["worker"] == worker)
        self._keep_holder(self._on_node(node))
        return node, self._on_node(node)

    def victim_hosts(self, number: int, pick: int) -> tuple[list[int], set[str]]:
        hosts = _chosen(range(1, self.hosts.num_hosts + 1), number, pick)
        workers = {worker for host in hosts for worker in self._on_host(host)}
        self._keep_holder(workers, hosts)
        return hosts, workers

    def _keep_holder(self, doomed: Collection[str], hosts: Collection[int] = ()) -> None:
        """Without another one, a newcomer is let in first: on another host than these."""
        others = set(doomed)
        if not self.holders() - others:
            self.note("another holder is needed first")
            self.undo_all()
            self.add_node(0, hosts)
            self.until(lambda: self.is_too_late() or bool(self.holders() - others), "another holder")
        self.check_time()

    def add_node(self, pick: int, not_on: Collection[int] = ()) -> None:
        """With one worker, which is not waited for."""
        if self._network is None:
            self._start_node(1, None)
            return
        hosts = range(1, self.hosts.num_hosts + 1)
        free = [host for host in hosts if host not in not_on and not self.hosts.is_cut(host)]
        if free:
            self._start_node(1, free[pick % len(free)])

    # --- what is done to it, and undone -----------------------------------------------------------------

    def recover(self, workers: Iterable[str]) -> None:
        """They may be met again; they hold the state once they have told a step again."""
        self.harmed -= set(workers)
        self._recovered_at |= dict.fromkeys(workers, time.monotonic())

    def signal_coordinator(self, number: int) -> None:
        assert self._coordinator is not None
        self._coordinator.signal(number, is_for_group=False)

    def disk(self, pick: int) -> tuple[str, Disk]:
        name = [*self._disks][pick % len(self._disks)]
        return name, self._disks[name]

    def undo_later(self, what: str, lasts_s: float, undo: Callable[[], None]) -> None:
        self._pending[what] = (time.monotonic() + lasts_s, undo)

    def undo(self, what: str) -> None:
        if what in self._pending:
            _, undo = self._pending.pop(what)
            self.note(f"undo {what}")
            undo()

    def _undo_due(self, now: float) -> None:
        for what in [what for what, (due, _) in self._pending.items() if due <= now]:
            self.undo(what)

    def undo_all(self) -> None:
        self._undo_due(float("inf"))

    # --- the course of it -------------------------------------------------------------------------------

    def await_training(self) -> None:
        self.until(lambda: bool(self.facts.of("step")), "the first step")

    def until(self, condition: Callable[[], bool], wanted: str, timeout_s: float = _END_S) -> None:
        """As long as workers tell something, they get on."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            num_told = self.facts.num_told
            self._until(partial(self._is_news, condition, num_told), _SILENCE_S, wanted)
            if time.monotonic() > deadline:
                raise ClusterError(f"not within {timeout_s:.0f} s: {wanted}\n{self._story()}")

    def _is_news(self, condition: Callable[[], bool], num_told: int) -> bool:
        return self.facts.num_told > num_told or condition()

    def await_end(self) -> None:
        self.until(lambda: all(node.agent.wait(0) is not None for node in self._nodes), "the end of all nodes")

    def pass_until(self, moment: float) -> None:
        while (now := time.monotonic()) < moment:
            self._undo_due(now)
            self.check_time()
            time.sleep(min(_LOOK_S, moment - now))

    def is_too_late(self) -> bool:
        done = max((fact["done"] for fact in self.facts.of("step")), default=0.0)
        return done > _LAST_CALL or all(node.agent.wait(0) is not None for node in self._nodes)

    def check_time(self) -> None:
        if self.is_too_late():
            raise TooLate

    def let_go(self) -> None:
        """Nothing more is done to it: it may hurry."""
        self.undo_all()
        (self.directory / "go").touch()

    def note(self, what: str) -> None:
        """For who looks at a schedule that failed."""
        with (self.directory / "soak.log").open("a") as log:
            log.write(f"{time.monotonic():.3f} {what}; living {self.living()}, holders {sorted(self.holders())}\n")


def _chosen(those: Any, number: int, pick: int) -> list[Any]:
    """So many of them, from a place that the pick says."""
    return [those[(pick + offset) % len(those)] for offset in range(min(number, len(those)))]


def script_of(schedule: Schedule) -> Path:
    return Path(__file__).parent / "scripts" / f"{schedule.door}.py"


def arguments(schedule: Schedule) -> list[str]:
    """Of the script: those that its bits depend on."""
    chosen = ["--reduce", schedule.mode, "--seed", str(schedule.training_seed)]
    return [*chosen, *(["--global-batches", str(schedule.global_batches)] if schedule.global_batches else [])]
