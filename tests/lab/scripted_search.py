"""A coordinator whose search is a list that the test writes: for stories about the worker's side of a trial.

Everything but the calls of a trial is the real coordinator. `targets.json` in SEARCH_FOLDER is a list of [wish,
length]; the target with number n is its nth. Behind the last one the search waits, until the test writes more. What a
trial reports is in `results.jsonl`, `checkpoints.jsonl` and `ends.jsonl`.

    python -u -m lab.scripted_search serve …        # as `python -u -m everstep serve …`"""

from __future__ import annotations

import asyncio
import json
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from everstep.cli.main import main
from everstep.coordinator.edge import handlers
from everstep.coordinator.edge.handlers import HttpCall
from everstep.coordinator.job import CoordinatedJob
from everstep.errors import Refused
from everstep.testing import Cluster
from everstep.wire.operations import OPERATIONS
from everstep.wire.trials import (
    CheckpointReport,
    TargetRequest,
    TrialEnd,
    TrialKept,
    TrialResult,
    TrialTarget,
)
from lab.stage import Stage

_LOOK_S = 0.02


def _folder() -> Path:
    return Path(os.environ["SEARCH_FOLDER"])


def _targets(folder: Path) -> list[list[Any]]:
    path = folder / "targets.json"
    return json.loads(path.read_text()) if path.exists() else []


def _lines(folder: Path, name: str) -> list[dict[str, Any]]:
    path = folder / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _keep(name: str, message: Any) -> None:
    with (_folder() / f"{name}.jsonl").open("a") as file:
        file.write(json.dumps(asdict(message)) + "\n")


async def target(call: HttpCall, message: TargetRequest) -> TrialTarget:
    _keep("questions", message)
    until = time.monotonic() + message.wait_s
    while len(targets := _targets(_folder())) <= message.seen and time.monotonic() < until:
        await asyncio.sleep(_LOOK_S)
    wish, length = targets[message.seen] if len(targets) > message.seen else ("wait", None)
    return TrialTarget(number=message.seen + 1, wish=wish, length=length, unit="batches", reason="the test says so")


async def report_result(call: HttpCall, message: TrialResult) -> TrialKept:
    _keep("results", message)
    length = max(each["length"] for each in _lines(_folder(), "results"))
    targets = _targets(_folder())
    number = sum(1 for wish, until in targets if wish == "train" and until is not None and until <= length)
    is_known = len(targets) > number
    return TrialKept(number=number + is_known, wish=targets[number][0] if is_known else "wait")


async def report_checkpoint(call: HttpCall, message: CheckpointReport) -> None:
    _keep("checkpoints", message)


async def end_trial(call: HttpCall, message: TrialEnd) -> None:
    _keep("ends", message)


async def _unknown(*_values: Any, **_more: Any) -> None:
    raise Refused("this coordinator has no experiments", code="no-experiments")


class SearchStage(Stage):
    """A trial whose search the test writes."""

    def __init__(
        self, *args: object, targets: list[list[Any]], trial: dict[str, Any] | None = None, **given: Any
    ) -> None:
        super().__init__(*args, **given)
        facts = {"experiment": 1, "trial": 1, "trial_id": 11, "seed": 5, "metric": "loss", "unit": "batches"}
        home = given.get("env", {}).get("EVERSTEP_HOME") or str(self.directory / "home")
        self._given_env |= {
            "SEARCH_FOLDER": str(self.directory),
            "EVERSTEP_TRIAL": json.dumps(facts | (trial or {})),
            "EVERSTEP_HOME": home,
        }
        self.decide(*targets)

    def decide(self, *targets: list[Any]) -> None:
        """All targets so far; the search waits behind them."""
        path = self.directory / "targets.json"
        path.with_suffix(".new").write_text(json.dumps(targets))
        path.with_suffix(".new").replace(path)

    def told(self, name: str) -> list[dict[str, Any]]:
        """What the trial has said: results, checkpoints, ends, questions."""
        return _lines(self.directory, name)

    def wait_told(self, name: str, number: int) -> None:
        self.until(lambda: len(self.told(name)) >= number, f"{number} {name}")

    def _start_service(self, command: Any, *, env: Any, output: Any) -> Any:
        if "serve" in command:
            command = [{"everstep": "lab.scripted_search"}.get(word, word) for word in command]
            path = f"{Path(__file__).parents[1]}{os.pathsep}{env.get('PYTHONPATH', '')}"
            return Cluster._start_service(self, command, env={**env, "PYTHONPATH": path}, output=output)
        return super()._start_service(command, env=env, output=output)


if __name__ == "__main__":
    for each in (target, report_result, report_checkpoint, end_trial):
        setattr(handlers, each.__name__, each)
    for operation in OPERATIONS:
        if not hasattr(handlers, operation.name) and not hasattr(CoordinatedJob, operation.name):
            setattr(handlers, operation.name, _unknown)
    main()
