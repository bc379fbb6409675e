"""Experiments on the local service, by the commands that people type: gates to hold trials at a batch, and the story
that must not depend on slots, times and deaths."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from everstep import wire
from lab.command import EVERSTEP, ROOT, Command, until
from lab.local_stage import LocalStage
from lab.processes import are_gone

CODE = Path(__file__).parents[1] / "cluster/experiments"
LOSS = "validation_loss"
Story = dict[int, dict[str, Any]]

SPACE = {"global_batch_size": 8, "lr": {"log": [1e-3, 1.0]}, "hidden": {"int": [4, 16]}}
BASE = {"entrypoint": "train.py", "seed": 9, "hyperparameters": SPACE, "resources": {"slots_per_trial": 2}}
RUNG, FULL = 3, 9
# Six trials train to the rung, the best 2 to the end.
ADAPTIVE = {
    "name": "adaptive_asha",
    "metric": LOSS,
    "max_trials": 6,
    "max_length": {"batches": FULL},
    "divisor": 3,
    "bracket_rungs": [2],
}


@cache
def few_images() -> dict[str, Any]:
    with np.load(ROOT / "examples/data/fashion-mnist-8k.npz") as arrays:
        return {name: arrays[name][: 256 if name.startswith("train") else 128] for name in arrays.files}


class ExperimentStage(LocalStage):
    """A folder with the code, and a service with this many slots."""

    def __init__(self, folder: Path, slots: int, **more: str) -> None:
        self.gates = folder / "gates"
        super().__init__(folder, EVERSTEP_LOCAL_SLOTS=str(slots), GATES_FOLDER=str(self.gates), **more)
        self.gates.mkdir()
        self.code = shutil.copytree(CODE, folder / "code", ignore=shutil.ignore_patterns("__pycache__"))
        np.savez(self.code / "images.npz", **few_images())

    def write(self, name: str, searcher: dict[str, Any], **more: Any) -> str:
        """An experiment's file."""
        content = {**BASE, "name": name, "searcher": searcher, **more}
        (self.code / f"{name}.yaml").write_text(yaml.safe_dump(content))
        return f"{name}.yaml"

    def create(self, file: str, *words: str) -> Command:
        where = (f"code/{file}", "code")
        command = Command(*EVERSTEP, "e", "create", *where, *words, folder=self.folder, **self.env)
        command.wait_said(r"(Created|Continuing) experiment \d+")
        self.connect_again()
        return command

    def search(self, file: str, *words: str) -> tuple[int, Story]:
        """From the command to its end: the winner, and all trials."""
        return self.end_of(self.create(file, *words))

    def end_of(self, command: Command) -> tuple[int, Story]:
        number = number_of(command.finish())
        return self.winner(number), self.story(number)

    def connect_again(self) -> None:
        self.url = self.files.coordinator.ready.read_text().strip()

    # --- gates

    def hold(self, trial: int, batch: int) -> None:
        (self.gates / f"gate-{trial}-{batch}").touch()

    def let_on(self) -> None:
        """All that are held, and will be."""
        for gate in self.gates.glob("gate-*"):
            gate.unlink()

    def wait_held(self, trial: int, batch: int, but: int = 0) -> int:
        """Its process ID, not that of an earlier one."""
        path, found = self.gates / f"at-{trial}-{batch}", [but]

        def is_there() -> bool:
            if path.exists() and path.read_text().endswith("\n"):
                found[0] = int(path.read_text())
            return found[0] != but

        until(is_there, lambda: f"trial {trial} is not at batch {batch}\n{self.whole_story()}")
        return found[0]

    def kill(self, *pids: int) -> None:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        until(lambda: are_gone(list(pids)))

    def until_paused(self, number: int) -> None:
        until(lambda: self.view(number).state == "PAUSED", self.whole_story)

    def node_of(self, trial: int) -> int:
        """The process that runs a trial on its slot."""
        found: dict[int, int] = {}
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                words = path.read_text().replace("\0", " ").split()
                if "trial-node" in words and words[-1].startswith(str(self.folder)):
                    order = json.loads((Path(words[-1]) / "order.json").read_text())
                    found[order["assignment"]["trial"]] = int(path.parent.name)
        return found[trial]

    # --- what happened

    def view(self, number: int) -> wire.ExperimentView:
        return self.trials.view(number)

    def events(self, number: int) -> list[wire.SearchEventView]:
        with self.coordinator() as coordinator:
            return coordinator.search_events(number, limit=1000).events

    def story(self, number: int) -> Story:
        """All that must not depend on slots, times and deaths, by trial."""
        assert self.view(number).state == "COMPLETED", self.whole_story()
        told: Story = {
            each.trial: {"hparams": each.hparams, "seed": each.seed, "state": each.state, "length": each.length,
                         "loss": each.latest, "digests": {}}
            for each in self.trials.trials(number)
        }  # fmt: skip
        for each in self.events(number):
            if each.event["kind"] == "validated":
                told[each.event["trial"]]["digests"][each.event["length"]] = each.digest
        return told

    def winner(self, number: int) -> int:
        best = self.view(number).best
        assert best is not None
        return best.trial

    def whole_story(self) -> str:
        with self.coordinator() as coordinator:
            found = coordinator.experiments().experiments
            trials = [each for it in found for each in coordinator.trials(it.experiment).trials]
        return "\n".join(map(str, [*found, *trials, self.log]))


def number_of(said: str) -> int:
    return int(re.findall(r"(?:Created|Continuing) experiment (\d+)", said)[-1])
