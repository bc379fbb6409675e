"""A coordinator and agents of a pool, as real processes, and experiments of a script that does what it is told."""

from __future__ import annotations

import signal
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from everstep import wire
from everstep.client.calls import Coordinator
from everstep.env import read_token
from everstep.errors import CoordinatorUnreachable
from everstep.process import Child
from everstep.storage import code_archive
from everstep.storage.code_archive import Code
from everstep.testing.tape import Tape
from lab import nest
from lab.command import EVERSTEP, Command, until
from lab.ports import reserved_port

SCRIPT = Path(__file__).parents[1] / "cluster/scripts/pool_trial.py"
ARGS = ("--folder", "{folder}", "--lr", "{lr}")
LENGTH = 8


class Trials:
    """Experiments at a coordinator, and what their scripts left in a folder."""

    def __init__(self, folder: Path, connect: Callable[[], Coordinator]) -> None:
        self.folder, self.connect = folder, connect

    def code(self, script: str = "") -> Code:
        folder = self.folder / "code"
        folder.mkdir(exist_ok=True)
        (folder / "train.py").write_text(script or SCRIPT.read_text())
        return code_archive.pack(folder)

    def create(
        self,
        num_trials: int = 1,
        *args: str,
        max_restarts: int = 5,
        script: str = "",
        config: Mapping[str, Any] | None = None,
        log_policies: Sequence[wire.LogPolicy] = (),
        **order: Any,
    ) -> int:
        """An experiment of so many trials, each with an `lr` of its own."""
        code = self.code(script)
        searcher = {"name": "random", "metric": "loss", "max_trials": num_trials, "max_length": {"batches": LENGTH}}
        space = {"lr": {"type": "double", "minval": 0.1, "maxval": 1.0}, "folder": str(self.folder)}
        with self.connect() as coordinator:
            coordinator.upload_code(code.sha256, code.data)
            spec = wire.ExperimentSpec(
                request=uuid.uuid4().hex,
                searcher=searcher,
                hyperparameters=space,
                max_restarts=max_restarts,
                log_policies=list(log_policies),
                order={"name": "x", "script": "train.py", "args": [*ARGS, *args], "code": code.sha256, **order},
                config={"searcher": searcher, "name": "x", **(config or {})},
            )
            return coordinator.create_experiment(spec).experiment

    def act(self, experiment: int, action: str) -> None:
        with self.connect() as coordinator:
            coordinator.act(experiment, wire.ExperimentAction(action=action))

    def kill_trial(self, experiment: int, trial: int) -> None:
        with self.connect() as coordinator:
            coordinator.kill_trial(experiment, trial)

    def view(self, experiment: int) -> wire.ExperimentView:
        with self.connect() as coordinator:
            return coordinator.experiment(experiment)

    def trials(self, experiment: int) -> list[wire.TrialView]:
        with self.connect() as coordinator:
            return coordinator.trials(experiment).trials

    def pool(self) -> wire.PoolView:
        with self.connect() as coordinator:
            return coordinator.pool("default")

    def held(self) -> list[wire.SlotView]:
        return [slot for agent in self.pool().agents for slot in agent.slots if slot.assignment]

    def wait_state(self, experiment: int, *states: str) -> wire.ExperimentView:
        def story() -> str:
            return f"{self.view(experiment)}\n{self.trials(experiment)}\n{self.pool()}"

        until(lambda: self._patient(lambda: self.view(experiment).state in states), story)
        return self.view(experiment)

    def _patient(self, look: Callable[[], bool]) -> bool:
        try:
            return look()
        except CoordinatorUnreachable:
            return False

    @property
    def starts(self) -> list[dict[str, Any]]:
        """Of complete lines: others are still being written."""
        return Tape(self.folder / "starts.jsonl").read()

    def wait_starts(self, number: int) -> list[dict[str, Any]]:
        until(lambda: len(self.starts) >= number, lambda: f"{self.starts}\n{self.pool()}")
        return self.starts

    def let_go(self) -> None:
        (self.folder / "go").touch()


class PoolStage:
    def __init__(self, folder: Path, **env: str) -> None:
        self.folder, self._env = folder, {"EVERSTEP_HOME": str(folder / "home"), **env}
        self.token_file, self.url = folder / "token", ""
        self.agents: dict[str, Command] = {}
        self.serve_words: list[str] = []  # more options of `everstep serve`
        self.start_service: Callable[..., Child] = nest.start_service
        self.trials = Trials(folder, self.connect)

    def __enter__(self) -> PoolStage:
        with ExitStack() as stack:
            self._port = stack.enter_context(reserved_port())
            self.url = f"http://127.0.0.1:{self._port}"
            self.start_coordinator()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each in self.agents.values():
            each.process.kill()
        self.coordinator.end()
        self._stack.close()

    def connect(self) -> Coordinator:
        return Coordinator(self.url, read_token(self.token_file), "")

    def start_coordinator(self) -> None:
        ready = self.folder / "ready"
        ready.unlink(missing_ok=True)
        options: Mapping[str, object] = {
            "--port": self._port,
            "--store": f"sqlite:///{self.folder}/store.db",
            "--token-file": self.token_file,
            "--ready-file": ready,
            "--code": self.folder / "kept-code",
        }
        (self.folder / "kept-code").mkdir(exist_ok=True)
        words = [*(word for pair in options.items() for word in pair), *self.serve_words]
        self.coordinator = Command(
            *EVERSTEP, "serve", *words, folder=self.folder, start=self.start_service, **self._env
        )
        self.coordinator.until(ready.exists, "the coordinator is ready")

    def kill_coordinator(self) -> None:
        self.coordinator.process.kill()

    def join(self, name: str = "a", slots: int = 1, **more: object) -> Command:
        """`more`: further options."""
        named = {f"--{key.replace('_', '-')}": value for key, value in more.items()}
        options = {"--coordinator": self.url, "--token-file": self.token_file, "--name": name, "--slots": slots}
        words = [word for pair in (options | named).items() for word in pair]
        command = Command(*self._at(name), *EVERSTEP, "pool", "join", *words, folder=self.folder, **self._env)
        self.agents[name] = command
        command.until(lambda: self._is_present(name), f"{name} has joined")
        return command

    def _at(self, name: str) -> list[str]:
        """Words before the command of an agent of this name: where it runs."""
        return []

    def _is_present(self, name: str) -> bool:
        return any(each.agent == name and each.is_present for each in self.trials.pool().agents)

    def agent_folder(self, name: str) -> Path:
        return self.folder / "home/pool" / f"default-{name}"

    def kill_agent(self, name: str) -> None:
        self.agents[name].process.signal(signal.SIGKILL, is_for_group=False)
        self.agents[name].process.wait()
