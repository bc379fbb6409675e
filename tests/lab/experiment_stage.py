"""Experiments on the local service, by the commands that people type: gates to hold trials at a batch, and the story
that must not depend on slots, times and deaths."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from everstep import wire
from lab.command import EVERSTEP, ROOT, Command, until
from lab.local_stage import LocalStage
from lab.pool_stage import Trials
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


class StagedExperiments:
    """A folder with code whose trials wait at gates, and what became of them."""

    folder: Path
    trials: Trials

    def prepare(self, folder: Path) -> None:
        self.gates = folder / "gates"
        self.gates.mkdir()
        self.code = shutil.copytree(CODE, folder / "code", ignore=shutil.ignore_patterns("__pycache__"))
        np.savez(self.code / "images.npz", **few_images())

    def story_of_all(self) -> str:
        with self.trials.connect() as coordinator:
            found = coordinator.experiments().experiments
            trials = [each for it in found for each in coordinator.trials(it.experiment).trials]
        return "\n".join(map(str, [*found, *trials]))

    whole_story = story_of_all

    def write(self, name: str, searcher: dict[str, Any], **more: Any) -> str:
        """An experiment's file."""
        content = {**BASE, "name": name, "searcher": searcher, **more}
        (self.code / f"{name}.yaml").write_text(yaml.safe_dump(content))
        return f"{name}.yaml"

    # --- gates

    def hold(self, trial: int, batch: int) -> None:
        (self.gates / f"gate-{trial}-{batch}").touch()

    def let_on(self, batch: int | None = None) -> None:
        """All that are held, and will be; or only at this batch."""
        for gate in self.gates.glob(f"gate-*-{'*' if batch is None else batch}"):
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

    def held_pids(self) -> list[int]:
        """Of all that are, or were, held at a gate."""
        noted = [path.read_text() for path in self.gates.glob("at-*")]
        return [int(pid) for pid in noted if pid.endswith("\n")]

    def kill(self, *pids: int) -> None:
        """Some may already have died with others."""
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        until(lambda: are_gone(list(pids)))

    # --- what happened

    def view(self, number: int) -> wire.ExperimentView:
        return self.trials.view(number)

    def events(self, number: int) -> list[wire.SearchEventView]:
        with self.trials.connect() as coordinator:
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

    def trained_once(self, story: Story) -> set[int]:
        """The trials of an adaptive search that have trained each batch once: each of its two micro-batches."""
        wanted = {trial: Counter([*range(each["length"])] * 2) for trial, each in story.items()}
        return {trial for trial in story if Counter(self._trained(trial)) == wanted[trial]}

    def _trained(self, trial: int) -> list[int]:
        return [int(batch) for batch in (self.gates / f"trained-{trial}").read_text().split()]

    def workers(self, trial: int) -> dict[int, set[int]]:
        """The processes that have trained each batch."""
        found: dict[int, set[int]] = defaultdict(set)
        for line in (self.gates / f"workers-{trial}").read_text().splitlines():
            batch, pid = map(int, line.split())
            found[batch].add(pid)
        return found

    def winner(self, number: int) -> int:
        best = self.view(number).best
        assert best is not None
        return best.trial


class ExperimentStage(StagedExperiments, LocalStage):
    """A folder with the code, and a service with this many slots."""

    def __init__(self, folder: Path, slots: int, **more: str) -> None:
        super().__init__(folder, EVERSTEP_LOCAL_SLOTS=str(slots), GATES_FOLDER=str(folder / "gates"), **more)
        self.prepare(folder)

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

    def until_paused(self, number: int) -> None:
        until(lambda: self.view(number).state == "PAUSED", self.whole_story)

    def nodes_of(self, trial: int) -> list[int]:
        """The processes that run a trial, one for each of its slots."""
        found: dict[int, list[int]] = defaultdict(list)
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                words = path.read_text().replace("\0", " ").split()
                if "trial-node" in words and words[-1].startswith(str(self.folder)):
                    order = json.loads((Path(words[-1]) / "order.json").read_text())
                    found[order["assignment"]["trial"]].append(int(path.parent.name))
        assert found[trial], found
        return found[trial]

    def whole_story(self) -> str:
        return f"{self.story_of_all()}\n{self.log}"


def number_of(said: str) -> int:
    return int(re.findall(r"(?:Created|Continuing) experiment (\d+)", said)[-1])
