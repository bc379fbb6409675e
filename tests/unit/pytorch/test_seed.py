"""One seed for all that is random in a trial, the order of the data included."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from everstep import pytorch


class Listening(pytorch.PyTorchTrial):
    """Keeps the samples that it is given, in their order."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context
        self.model = context.wrap_model(torch.nn.Linear(1, 1))
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.0))
        self.heard: list[float] = []

    def build_training_data_loader(self) -> DataLoader[Any]:
        return DataLoader(TensorDataset(torch.arange(32.0)[:, None]), batch_size=4, shuffle=True)

    def build_validation_data_loader(self) -> DataLoader[Any]:
        return DataLoader(TensorDataset(torch.ones(1, 1)))

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> torch.Tensor:
        self.heard += batch[0].flatten().tolist()
        loss = self.model(batch[0]).mean()
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return loss

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        return {"one": 1.0}


def order(seed: int) -> list[float]:
    with pytorch.init(seed=seed, hparams={"seed": seed}, micro_batches=1, enable_tensorboard_logging=False) as context:
        trial = Listening(context)
        pytorch.Trainer(trial, context).fit(max_length=pytorch.Epoch(1))
    return trial.heard


def test_the_order_of_the_data_follows_from_the_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVERSTEP_HOME", str(tmp_path))
    first, again, other = order(1), order(1), order(2)
    assert first == again != other
    assert sorted(first) == sorted(other) == list(range(32))
