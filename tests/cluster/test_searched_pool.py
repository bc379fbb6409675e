"""A trial class, a real coordinator, a real pool: some are cut, some promoted, the same for each number of slots.
With a slot for each, none changes its process."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

from everstep import wire
from everstep.storage import code_archive
from lab.pool_stage import PoolStage

MODEL = """
import json
import os
import torch
from everstep import pytorch

class MyTrial(pytorch.PyTorchTrial):
    def __init__(self, context):
        self.context = context
        self.model = context.wrap_model(torch.nn.Linear(3, 1))
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=context.get_hparam("lr")))
        self.data = torch.randn(32, 3, generator=torch.Generator().manual_seed(1))

    def build_training_data_loader(self):
        return pytorch.DataLoader(self.data, batch_size=4, shuffle=True)

    def build_validation_data_loader(self):
        return pytorch.DataLoader(self.data, batch_size=8)

    def loss(self, batch):
        return (self.model(batch) - batch.sum(dim=1, keepdim=True)).square().mean()

    def train_batch(self, batch, epoch_idx, batch_idx):
        trial = json.loads(os.environ["EVERSTEP_TRIAL"])["trial"]
        with open(os.environ["BATCHES"], "a") as batches:
            print(trial, batch_idx, os.getpid(), file=batches)
        loss = self.loss(batch)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch):
        return {"loss": self.loss(batch)}
"""


def search(folder: Path, slots: int) -> list[tuple[Any, ...]]:
    """Each trial's length, metrics and state."""
    folder.mkdir()
    (folder / "code").mkdir()
    (folder / "code/model_def.py").write_text(MODEL)
    code = code_archive.pack(folder / "code")
    searcher = {
        "name": "async_halving",
        "metric": "loss",
        "max_trials": 4,
        "num_rungs": 2,
        "divisor": 2,
        "max_length": {"batches": 8},
    }
    with PoolStage(folder) as stage:
        stage.join(slots=slots)
        with stage.connect() as coordinator:
            coordinator.upload_code(code.sha256, code.data)
            module = {"script": "everstep.pytorch.harness", "is_module": True, "args": ["model_def:MyTrial"]}
            spec = wire.ExperimentSpec(
                request=uuid.uuid4().hex,
                searcher=searcher,
                hyperparameters={"lr": {"type": "log", "base": 10, "minval": -3, "maxval": -1}},
                order={"name": "x", "code": code.sha256, "env": {"BATCHES": str(folder / "batches")}, **module},
                config={"searcher": searcher, "name": "x"},
            )
            experiment = coordinator.create_experiment(spec).experiment
            stage.trials.wait_state(experiment, *wire.experiments.ENDED)
            assert stage.trials.view(experiment).state == wire.experiments.COMPLETED
            found = stage.trials.trials(experiment)
            saved = {each.trial: each for each in coordinator.checkpoints(experiment).checkpoints}
    assert all(each.latest_checkpoint for each in found)
    assert {each.step for each in saved.values()} <= {4, 8}
    return [(each.trial, each.length, each.latest, each.best, each.state) for each in found]


def processes(folder: Path) -> dict[int, set[str]]:
    """By trial; each batch was trained once."""
    rows = [row.split() for row in (folder / "batches").read_text().splitlines()]
    assert len({(trial, batch) for trial, batch, _ in rows}) == len(rows)
    return {int(trial): {pid for each, _, pid in rows if each == trial} for trial, *_ in rows}


def test_a_search_is_the_same_on_one_slot_where_trials_are_parked_and_on_four_where_they_stay(tmp_path: Path) -> None:
    one, four = search(tmp_path / "one", 1), search(tmp_path / "four", 4)

    assert one == four
    assert [len(pids) for _, pids in sorted(processes(tmp_path / "four").items())] == [1, 1, 1, 1]
    assert max(len(pids) for pids in processes(tmp_path / "one").values()) == 2, "parked, and continued"
    lengths = [length for _, length, *_ in one]
    assert sorted(set(lengths)) == [4, 8], "some are cut, some are promoted"
    assert {state for *_, state in one} == {wire.experiments.COMPLETED}
