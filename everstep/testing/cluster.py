"""Cluster: a coordinator, agents and workers as real processes, with the means to hurt them.

One agent per node; by default one node holds the first workers and each `add` brings another. With `hosts=N`
every node has a network of its own (network.py) and its cable can be pulled. Closing leaves nothing behind."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, TypeVar

import everstep
from everstep import env as names
from everstep.client.calls import Coordinator
from everstep.errors import EverstepError, UsageError
from everstep.launcher.local_coordinator import CoordinatorFiles, private_directory, start_coordinator
from everstep.launcher.logs import tail
from everstep.launcher.worker_files import WorkerFiles
from everstep.process import Child, kill_group, started_at, wait_for_end
from everstep.retry import patiently
from everstep.testing.network import Network
from everstep.testing.tape import Event, Tape, is_match
from everstep.waiting import wait_until
from everstep.wire import JobSpec, JobView, Policy, Stop

T = TypeVar("T")

JOB = "test"
_LOOK_S = 0.005
_WAIT_S = 120.0  # for an event; the machine may be busy
_END_S = 5.0  # for a killed one to be gone
_ANSWER_S = 60.0  # for the coordinator to answer


class ClusterError(EverstepError, AssertionError):
    """An expected event did not happen; shows the last events and the last lines of all logs."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """How a job went."""

    exit_codes: dict[str, int]  # by node; one that was frozen, cut off or killed is not in it
    all_events: list[Event]

    @property
    def is_good(self) -> bool:
        return 0 in self.exit_codes.values()

    def events(self, name: str, **facts: Any) -> list[Event]:
        return [event for event in self.all_events if is_match(event, name, facts)]

    @property
    def outputs(self) -> list[Event]:
        """What the scripts of workers that finished reported: their "result" events."""
        finished = {event["worker"] for event in self.events("worker.exited", exit_code=0)}
        return [event for event in self.events("result") if event["worker"] in finished]

    @property
    def weights_digest(self) -> str:
        """The one digest that all workers that finished reported."""
        digests = {event["worker"]: event["weights_digest"] for event in self.outputs if "weights_digest" in event}
        if len(set(digests.values())) != 1:
            told = f"different digests: {digests}" if digests else "no digest"
            hint = 'emit("result", weights_digest=everstep.weights_digest(model)) at the end, from everstep.events'
            raise ClusterError(f"workers that finished reported {told}", hint=hint, code="cluster-digests-differ")
        return str(next(iter(digests.values())))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _ClusterNode:
    name: str
    agent: Child
    host: int  # 0: no network of its own


class Cluster:
    """Start it with `with`. Workers are named w0, w1, … in the order in which they were started."""

    def __init__(
        self,
        script: str | Path,
        args: Sequence[str] = (),
        *,
        workers: int | None = None,
        policy: Policy | None = None,
        env: Mapping[str, str] | None = None,
        hosts: int | None = None,
        max_restarts: int = 0,
        shutdown_s: float = 10.0,
        directory: Path | None = None,
    ) -> None:
        """`workers` starts them at once; else call `start`. Without a `directory`, a temporary one is used."""
        self._script, self._args, self._num_workers = str(script), [str(arg) for arg in args], workers
        self._policy = policy or Policy()
        self._given_env = dict(env or {})
        self._network = Network(hosts) if hosts is not None else None
        self._max_restarts, self._shutdown_s = max_restarts, shutdown_s
        self._is_temporary = directory is None
        self.directory = private_directory(directory or Path(tempfile.mkdtemp(prefix="everstep-")))
        self._files = CoordinatorFiles(directory=self.directory)
        self._tape = Tape(self.directory / "events.jsonl")
        self._nodes: list[_ClusterNode] = []
        self._frozen_nodes: set[str] = set()
        self._coordinator: Child | None = None
        self._port = 0

    def __enter__(self) -> Cluster:
        try:
            if self._network is not None:
                self._network.__enter__()
            self.start_coordinator()
            if self._num_workers is not None:
                self.start(self._num_workers)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not isinstance(error, ClusterError):
            print(self._story(), file=sys.stderr)
        self.close()

    def close(self) -> None:
        """End every process, remove every file and namespace. May be called again."""
        for node in self._nodes:
            node.agent.signal(signal.SIGKILL)  # first, lest it replace the workers; the kernel ends them with it …
        for pid in self._pids():
            kill_group(pid)  # … but not what they have started
            wait_for_end(pid, _END_S)
        for node in self._nodes:
            node.agent.kill()
        if self._coordinator is not None:
            self._coordinator.kill()
        if self._network is not None:
            self._network.close()
        if self._is_temporary:
            shutil.rmtree(self.directory, ignore_errors=True)

    # --- bringing up ------------------------------------------------------------------------------

    def start(self, workers: int) -> None:
        """Create the job and start its first workers: all on one node, or evenly over the hosts in turn."""
        hosts = [*range(1, self._network.num_hosts + 1)] if self._network is not None else [None]
        per_host, rest = divmod(workers, len(hosts))
        if rest:
            problem = f"{workers} workers do not split evenly over {len(hosts)} hosts"
            raise UsageError(problem, code="cluster-workers-uneven")
        policy = dataclasses.replace(
            self._policy,
            start_workers=workers,
            start_nodes=len(hosts),
            last_call_s=0.0,
            max_restarts=self._max_restarts,
        )
        self._ask(lambda coordinator: coordinator.create_job(JobSpec(name=self._script, policy=policy)))
        names = [self._start_node(per_host, host) for host in hosts]
        for name in names:
            self._await_workers(name, per_host)

    def add(self, n: int = 1, *, host: int | None = None) -> list[str]:
        """Start one more node with `n` workers; returns their names once their processes run."""
        if self._network is not None and host is None:
            raise UsageError("which host is the node on?", hint="add(n, host=1)", code="cluster-host-missing")
        return self._await_workers(self._start_node(n, host), n)

    def _start_node(self, num_workers: int, host: int | None) -> str:
        name = f"node{len(self._nodes) + 1}"
        inside = self._network.inside(host) if self._network is not None and host is not None else []
        command = [*inside, *self._agent_command(name, num_workers)]
        with (self.directory / f"{name}.log").open("ab") as output:
            agent = self._start_service(command, env=self._environment(), output=output)
        self._nodes.append(_ClusterNode(name=name, agent=agent, host=host or 0))
        return name

    def _await_workers(self, node: str, num_workers: int) -> list[str]:
        wanted = f"{num_workers} workers started by {node}"
        self._until(lambda: len(self._workers_of(node)) >= num_workers, _WAIT_S, wanted)
        return self._workers_of(node)

    def _workers_of(self, node: str) -> list[str]:
        return [event["worker"] for event in self.events("worker.started", agent=node)]

    def _agent_command(self, name: str, num_workers: int) -> list[str]:
        options = {
            "--name": name,
            "--coordinator": self.url,
            "--token-file": self._files.token,
            "--job": JOB,
            "--workers": num_workers,
            "--node-rank": len(self._nodes),
            "--shutdown-s": self._shutdown_s,
            "--heartbeat-s": self._policy.heartbeat_s,
            "--log-dir": self.directory,
        }
        flat = [str(part) for option in options.items() for part in option]
        return [sys.executable, "-u", "-m", "everstep", "join", *flat, "--", self._script, *self._args]

    def _environment(self) -> dict[str, str]:
        kept = (names.CHECK_EVENTS, names.BACKEND)
        outer = {
            name: value
            for name, value in names.everything().items()
            if name in kept or not name.startswith("EVERSTEP_")
        }
        path = os.pathsep.join(filter(None, [str(Path(everstep.__file__).parents[1]), outer.get("PYTHONPATH", "")]))
        return outer | {"PYTHONPATH": path, names.EVENTS: str(self.directory / "events.jsonl")} | self._given_env

    # --- the coordinator --------------------------------------------------------------------------

    @property
    def url(self) -> str:
        host = self._network.address(0) if self._network is not None else "127.0.0.1"
        return f"http://{host}:{self._port}"

    @property
    def token_file(self) -> Path:
        return self._files.token

    def start_coordinator(self) -> None:
        """Start it, or start it again after `kill_coordinator`: same store, same port, same token."""
        host, inside = "127.0.0.1", list[str]()
        if self._network is not None:
            host, inside = self._network.address(0), self._network.inside(0)
        self._coordinator, url = start_coordinator(
            self._files,
            host=host,
            port=self._port,
            inside=inside,
            env=self._environment(),
            start=self._start_service,
        )
        self._port = int(url.rstrip("/").rsplit(":", 1)[1])

    def _start_service(
        self, command: Sequence[str], *, env: Mapping[str, str], output: IO[bytes] | int | None
    ) -> Child:
        return Child.start(command, env=env, output=output)

    def kill_coordinator(self) -> None:
        """SIGKILL, in the middle of whatever it does."""
        assert self._coordinator is not None
        self._coordinator.kill()

    def restart_coordinator(self) -> None:
        self.kill_coordinator()
        self.start_coordinator()

    def view(self) -> JobView:
        """What the coordinator knows."""
        return self._ask(lambda coordinator: coordinator.view())

    def stop(self, reason: str) -> None:
        """Have the coordinator stop the job."""
        self._ask(lambda coordinator: coordinator.stop(Stop(reason=reason)))

    def _ask(self, question: Callable[[Coordinator], T]) -> T:
        def ask() -> T:
            with Coordinator(self.url, names.read_token(self.token_file), JOB) as coordinator:
                return question(coordinator)

        def ask_on() -> T:
            return patiently(ask, _ANSWER_S)

        return self._network.within(0, ask_on) if self._network is not None else ask_on()

    # --- watching ---------------------------------------------------------------------------------

    def events(self, name: str, **facts: Any) -> list[Event]:
        """The events so far with this name and these facts; a fact may be a function: step=lambda s: s > 5."""
        return [event for event in self._tape.read() if is_match(event, name, facts)]

    def wait(self, event: str, timeout_s: float = _WAIT_S, **facts: Any) -> Event:
        """The first event with this name and these facts, now or when it comes; an error if it cannot come any more."""
        wanted = " ".join([event, *(f"{name}={value}" for name, value in facts.items())])
        self._until(lambda: bool(self.events(event, **facts)), timeout_s, wanted)
        return self.events(event, **facts)[0]

    def finish(self, timeout_s: float = 120.0, *, check: bool = True) -> Result:
        """Wait until all nodes have ended (not for those frozen or cut off). With `check`, one must have ended well."""
        deadline = time.monotonic() + timeout_s
        for node in self._nodes:
            if not self._is_out(node) and node.agent.wait(max(0.0, deadline - time.monotonic())) is None:
                problem = f"{node.name} did not end within {timeout_s:.0f} s\n{self._story()}"
                raise ClusterError(problem, code="cluster-node-did-not-end")
        ends = {node.name: node.agent.wait(0) for node in self._nodes}
        result = Result(
            exit_codes={name: end.code for name, end in ends.items() if end is not None},
            all_events=list(self._tape.read()),
        )
        if check and not result.is_good:
            raise ClusterError(f"no node ended well: {result.exit_codes}\n{self._story()}", code="cluster-no-good-end")
        return result

    def log(self, worker: str) -> str:
        """All that a worker has printed: stdout, then stderr."""
        files = WorkerFiles(directory=self.directory / JOB / worker)
        return "".join(path.read_text(errors="replace") for path in (files.stdout, files.stderr))

    def pid(self, worker: str) -> int:
        started = self.events("worker.started", worker=worker)
        if not started:
            raise UsageError(f"no worker {worker} was started", code="cluster-worker-unknown")
        return int(started[0]["pid"])

    def _until(self, condition: Callable[[], bool], timeout_s: float, wanted: str) -> None:
        def look() -> bool:
            if condition():
                return True
            if self._nodes and all(node.agent.wait(0) is not None for node in self._nodes) and not condition():
                raise ClusterError(f"the job ended before: {wanted}\n{self._story()}", code="cluster-job-ended")
            return False

        if not wait_until(look, timeout_s, wanted, pause_s=_LOOK_S):
            raise ClusterError(f"not within {timeout_s:.0f} s: {wanted}\n{self._story()}", code="cluster-event-missing")

    def _is_out(self, node: _ClusterNode) -> bool:
        is_cut = self._network is not None and self._network.is_cut(node.host)
        return is_cut or node.name in self._frozen_nodes

    def _story(self) -> str:
        lines = ["last events:", *(f"  {event}" for event in self._tape.read()[-20:])]
        for log in sorted([*self.directory.glob("*.log"), *self.directory.glob("*/w*/*.log")]):
            lines += [f"{log.relative_to(self.directory)}:", *(f"  | {line}" for line in tail(log))]
        return "\n".join(lines)

    # --- hurting ----------------------------------------------------------------------------------

    def kill(self, worker: str) -> None:
        """SIGKILL: it has no last word."""
        os.kill(self.pid(worker), signal.SIGKILL)

    def preempt(self, worker: str) -> None:
        """SIGTERM: it is asked to go."""
        os.kill(self.pid(worker), signal.SIGTERM)

    def freeze(self, worker: str, *, with_agent: bool = False) -> None:
        """SIGSTOP: it is there and does nothing. With its agent, the whole node stands still."""
        if with_agent:
            node = self._node_of(worker)
            self._frozen_nodes.add(node.name)
            node.agent.signal(signal.SIGSTOP)
            self._signal_node(node, signal.SIGSTOP)
        else:
            os.kill(self.pid(worker), signal.SIGSTOP)

    def thaw(self, worker: str) -> None:
        """SIGCONT, to the whole node if that was frozen."""
        node = self._node_of(worker)
        if node.name in self._frozen_nodes:
            self._frozen_nodes.discard(node.name)
            self._signal_node(node, signal.SIGCONT)
            node.agent.signal(signal.SIGCONT)
        else:
            os.kill(self.pid(worker), signal.SIGCONT)

    def kill_node(self, worker: str) -> None:
        """SIGKILL to the agent of this worker: the node is gone, with all its workers."""
        self._node_of(worker).agent.kill()

    def preempt_node(self, worker: str) -> None:
        """SIGTERM to the agent of this worker: the node is asked to go."""
        self._node_of(worker).agent.signal(signal.SIGTERM)

    @property
    def hosts(self) -> Network:
        """To cut, mend and crash. The coordinator is on host 0, the workers' hosts are numbered from 1. One that
        crashed can have a new node after `mend`: `add(host=…)`."""
        if self._network is None:
            raise UsageError("this cluster has one network", hint="Cluster(…, hosts=3)", code="cluster-without-hosts")
        return self._network

    def _node_of(self, worker: str) -> _ClusterNode:
        self.pid(worker)
        (started,) = self.events("worker.started", worker=worker)
        return next(node for node in self._nodes if node.name == started["agent"])

    def _signal_node(self, node: _ClusterNode, number: int) -> None:
        for pid in self._pids(agent=node.name):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _pids(self, **facts: Any) -> list[int]:
        """Of the workers that were started, but not a number that the kernel has given to another process since."""
        since_boot_s = time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()
        return [
            event["pid"]
            for event in self.events("worker.started", **facts)
            if int(started_at(event["pid"]) or 0) / os.sysconf("SC_CLK_TCK") <= event["t"] + since_boot_s
        ]
