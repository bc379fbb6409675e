"""`everstep e create --platform …`: a search of an experiment with a pool of its own, and what is seen of its nodes.

A trial waits for the file `go`; its result depends on its hyperparameter and on its own step, which it keeps in a file
of the folder."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from everstep.testing.tape import Tape
from lab.command import EVERSTEP, Command, Shell, until

SCRIPT = """
import json, os, pathlib, sys, time
import everstep
lr, folder = float(sys.argv[1]), pathlib.Path(sys.argv[2])
number = json.loads(os.environ["EVERSTEP_TRIAL"])["trial"]
with open(folder / "starts.jsonl", "a") as file:
    file.write(json.dumps({"trial": number, "pid": os.getpid()}) + "\\n")
while not (folder / "go").exists():
    time.sleep(0.02)
everstep.report({"loss": abs(lr - 0.2)}, step=10)
"""
LRS = (0.1, 0.2, 0.4)


class PlatformPool:
    def __init__(self, folder: Path, platform: str, words: tuple[str, ...] = (), **env: str) -> None:
        """`words`: more options of the command."""
        self.folder, self.platform = folder, platform
        self.create = ("e", "create", "exp.yaml", "code", "--platform", platform, *words)
        self.shell = Shell(folder, EVERSTEP_LOCAL_SLOTS="1", EVERSTEP_LOCAL_IDLE_S="600", **env)
        (folder / "starts.jsonl").touch()
        (folder / "starts.jsonl").chmod(0o666)  # in a pod, trials are another user
        (folder / "code").mkdir(exist_ok=True)
        (folder / "code/train.py").write_text(SCRIPT)

    def write_file(self, **more: Any) -> None:
        file: Mapping[str, Any] = {
            "name": "line",
            "entrypoint": "train.py",
            "args": ["{lr}", str(self.folder)],
            "hyperparameters": {"lr": {"choice": [*LRS]}},
            "searcher": {"name": "grid", "metric": "loss"},
            "workers_per_node": 1,
            **more,
        }
        (self.folder / "exp.yaml").write_text(yaml.safe_dump(file))

    def command(self) -> Command:
        return Command(*EVERSTEP, *self.create, folder=self.folder, **self.shell.env)

    @property
    def starts(self) -> list[dict[str, int]]:
        return Tape(self.folder / "starts.jsonl").read()

    def let_go(self) -> None:
        (self.folder / "go").touch()

    @property
    def pools(self) -> list[str]:
        """That were ever asked for."""
        return [path.parent.name for path in self.place.glob("*/request.json")]

    @property
    def place(self) -> Path:
        return self.folder / "home/local/pools"

    @property
    def are_released(self) -> bool:
        """As the service says; it removes `used` after the last node."""
        return not [*self.place.glob("*/used")]

    def wait_released(self) -> None:
        until(lambda: self.are_released, self.story)

    def story(self) -> str:
        logs = [*self.place.glob("*/nodes.log"), *self.place.glob("*/nodes/*/*/node.log")]
        logs += [self.folder / "home/local/service.log", *self.folder.glob("terminal-*.log")]
        return "\n".join(f"--- {path}\n{path.read_text()}" for path in logs if path.exists())

    def results(self, experiment: int = 1) -> list[tuple[Any, ...]]:
        trials = json.loads(self.shell.type("e", "list-trials", str(experiment), "--json"))
        return [(each["state"], each["num_restarts"], each["hparams"]["lr"], each["best"]) for each in trials]


def lose_a_node_and_finish(pool: PlatformPool, kill: Callable[[], None]) -> None:
    """Two trials at a time; `kill` ends a node. The same command continues after Ctrl-C, and no node is left."""
    with pool.command() as command:
        command.until(lambda: len(pool.starts) == 2, f"two trials train\n{pool.story()}")
        kill()
        command.until(lambda: len(pool.starts) == 3, f"a lost trial starts again\n{pool.story()}")
        command.signal(signal.SIGINT)
        assert command.exit_code() == 128 + signal.SIGINT, command.story()
        assert "`everstep e activate 1`" in command.said
    pool.wait_released()
    pool.let_go()
    with pool.command() as command:
        said = command.finish()
    assert re.search("^Continuing experiment 1$", said, re.MULTILINE), said
    results = pool.results()
    assert [each[:2] for each in results] == [("COMPLETED", 0)] * 3, "a lost node is no failure"
    assert {lr: loss for _, _, lr, loss in results} == {lr: abs(lr - 0.2) for lr in LRS}
    pool.wait_released()
