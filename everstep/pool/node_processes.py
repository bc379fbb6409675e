"""Starts the processes of trials as forks of a process that has imported what they need; without it, as new processes.

They end with this process, however it ends."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from everstep import env
from everstep.ipc.event_loop import EventLoop
from everstep.launcher.starter import nursery_environment
from everstep.nursery.client import NODES, TRIALS, NurseryClient, NurseryGone
from everstep.nursery.warm import warm_nursery
from everstep.pool.trial_order import KEEP_WARM_S
from everstep.process import Child, own_command
from everstep.storage import private_file

READY_S = 60.0
_AGAIN_S = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialProcess:
    child: Child
    parent: NurseryClient | None  # None: not a fork

    @property
    def is_bereft(self) -> bool:
        """Whether it died together with the process that forked it."""
        return self.parent is not None and self.parent.is_lost


class NodeProcesses:
    """Starts processes. Use it from the agent's thread only."""

    def __init__(self, loop: EventLoop) -> None:
        self._loop = loop
        self._nursery: NurseryClient | None = None
        self._workers: NurseryClient | None = None

    def open(self) -> None:
        if env.value(env.NURSERY) == "off":
            return
        self._make_nursery()
        self._warm_workers()

    def start(self, folder: Path, secrets: Mapping[str, str]) -> TrialProcess:
        """A process that runs the order in the folder, with these variables. OSError: it cannot be started."""
        command = own_command("trial-node", {"--folder": str(folder)})
        environment = {**_without_tokens(), **secrets}
        with private_file.append(folder / "node.log") as output:
            if self._nursery is not None and self._nursery.await_ready(READY_S):
                try:
                    child = self._nursery.start_worker(command, env=environment, output=output, cwd=folder)
                    return TrialProcess(child=child, parent=self._nursery)
                except NurseryGone:
                    pass
            child = Child.start(command, env=environment, output=output, cwd=folder)
            return TrialProcess(child=child, parent=None)

    def close(self) -> None:
        for nursery in (self._nursery, self._workers):
            if nursery is not None:
                nursery.close()

    def _make_nursery(self) -> None:
        environment = _without_tokens()
        self._nursery = NurseryClient.start(environment, NODES)
        self._loop.watch(self._nursery, self._hear)

    def _hear(self) -> None:
        assert self._nursery is not None
        self._nursery.hear()
        if self._nursery.is_gone:
            self._loop.forget(self._nursery)
            self._nursery.close()
            self._nursery = None
            self._loop.after(_AGAIN_S, self._make_nursery)

    def _warm_workers(self) -> None:
        """Import torch before the first trial arrives, and keep the process while this connection is open."""
        if importlib.util.find_spec("torch") is None:
            return
        outer = {"OMP_NUM_THREADS": "1", **env.everything()}
        self._workers = warm_nursery(nursery_environment(outer, 1), TRIALS, may_start=True)
        if self._workers is not None:
            self._workers.keep_warm(KEEP_WARM_S)


def _without_tokens() -> dict[str, str]:
    """The agent's environment, without its own tokens: a trial has its own."""
    return {name: value for name, value in env.everything().items() if name not in (env.TOKEN, env.TOKEN_FILE)}
