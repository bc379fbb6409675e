"""What was trained is not trained again, what is trained again is compared, and what begins with old weights has them:
with real trials on a real pool."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from everstep import wire
from everstep.job_file.tree import dump
from lab.command import Shell
from lab.pool_stage import PoolStage

SCRIPT = Path(__file__).parent / "scripts/retrained.py"
LRS = [0.02, 0.05]


class RetrainedStage:
    """A pool with two slots, and a folder with the code and the file of an experiment."""

    def __init__(self, stage: PoolStage) -> None:
        self.pool = stage
        self.folder = stage.folder / "mine"
        self.folder.mkdir()
        shutil.copy(SCRIPT, self.folder / "train.py")
        token = {"EVERSTEP_COORDINATOR": stage.url, "EVERSTEP_TOKEN_FILE": str(stage.token_file)}
        self.shell = Shell(self.folder, **token)

    def create(self, length: int, *changes: str, **keys: Any) -> int:
        """Until it is completed."""
        searcher = {"name": "grid", "metric": "validation_loss", "max_length": {"batches": length}}
        lr = {"type": "categorical", "vals": LRS}
        file = {
            "name": "retrained",
            "entrypoint": "train.py",
            "args": [str(self.pool.folder)],
            "hyperparameters": {"global_batch_size": 8, "lr": lr},
            "searcher": {**searcher, **keys.pop("searcher", {})},
            "seed": 3,
            **keys,
        }
        (self.pool.folder / "exp.yaml").write_text(dump(file))
        options = [word for each in changes for word in ("--config", each)]
        said = self.shell.type("e", "create", str(self.pool.folder / "exp.yaml"), ".", *options)
        return self._completed(said)

    def fork(self, experiment: int, change: str) -> int:
        return self._completed(self.shell.type("e", "fork", str(experiment), "--config", change))

    def _completed(self, said: str) -> int:
        number = int(said.split("Created experiment ")[1].split()[0])
        view = self.pool.trials.wait_state(number, *wire.ENDED)
        assert view.state == wire.COMPLETED, self.pool.trials.trials(number)
        return number

    def batches(self, experiment: int, trial: int) -> dict[int, str]:
        """The weights before each batch that the trial itself has trained."""
        lines = (self.pool.folder / "batches.jsonl").read_text().splitlines()
        rows = [row for row in map(json.loads, lines) if row["job"] == f"e{experiment}-t{trial}"]
        return {row["batch"]: row["weights"] for row in rows}

    def results(self, experiment: int, trial: int) -> dict[int, str]:
        with self.pool.connect() as coordinator:
            kept = coordinator.trial_results(experiment, trial).results
        assert all(each.digest for each in kept)
        return {each.length: each.digest for each in kept}

    def verify(self, experiment: int, trial: int, *, is_good: bool) -> dict[str, Any]:
        words = ("e", "verify", str(experiment), "--trial", str(trial), "--json")
        told: dict[str, Any] = json.loads(self.shell.type(*words, is_good=is_good))
        assert self.shell.last.returncode == (0 if is_good else 1)
        return told


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[RetrainedStage]:
    with PoolStage(tmp_path) as pool:
        pool.join(slots=2)
        yield RetrainedStage(pool)


def test_a_longer_experiment_continues_an_old_one_and_verify_finds_a_flipped_bit(stage: RetrainedStage) -> None:
    reuse = {"reuse": True, "data": {"version": "v1"}}
    short = stage.create(8, **reuse)
    assert sorted(stage.batches(short, 1)) == list(range(8))
    longer = stage.create(14, **reuse)
    assert sorted(stage.batches(longer, 1)) == list(range(8, 14)), "the first 8 were there"
    assert stage.results(longer, 1).keys() == {6, 12, 14}, "as without the other one"
    assert stage.results(longer, 1)[6] == stage.results(short, 1)[6]
    again = stage.create(14, "name=another", **reuse)
    assert not stage.batches(again, 1) and stage.results(again, 1) == stage.results(longer, 1)
    assert stage.pool.trials.view(again).best == stage.pool.trials.view(longer).best
    forked = stage.fork(longer, "searcher.max_length.batches=16")
    assert sorted(stage.batches(forked, 1)) == [14, 15], "a fork continues, too"

    told = stage.verify(longer, 2, is_good=True)
    assert sorted(stage.batches(told["experiment"], 1)) == list(range(14)), "from its beginning"
    compared = {(each["what"], each["length"]): each["is_equal"] for each in told["compared"]}
    assert {("validation", length): True for length in (6, 12, 14)}.items() <= compared.items()
    assert compared["checkpoint", 14] and False not in compared.values()

    (stage.pool.folder / "flip").write_text("9")
    told = stage.verify(longer, 2, is_good=False)
    wrong = [(each["what"], each["length"]) for each in told["compared"] if each["is_equal"] is False]
    assert wrong[0] == ("checkpoint", 10), "the first one after batch 9"
    assert ("validation", 12) in wrong and ("validation", 6) not in wrong


def test_every_trial_of_a_warm_start_begins_with_those_weights(stage: RetrainedStage) -> None:
    first = stage.create(8)
    source = stage.pool.trials.trials(first)[1]
    by_trial = stage.create(4, searcher={"source_trial_id": source.trial_id})
    by_uuid = stage.create(4, searcher={"source_checkpoint_uuid": source.latest_checkpoint})
    wanted = stage.results(first, source.trial)[8]
    for experiment in (by_trial, by_uuid):
        for trial in (1, 2):
            begun = stage.batches(experiment, trial)
            assert sorted(begun) == [0, 1, 2, 3] and begun[0] == wanted
    told = stage.verify(by_trial, 1, is_good=True)
    assert stage.batches(told["experiment"], 1)[0] == wanted
