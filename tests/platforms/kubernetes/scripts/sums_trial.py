"""A trial that learns sums, by the Trainer's loop; its last line has a digest of the weights.

Each micro-batch takes almost half a second until there is a file `hurry` in /data: a test has time to disturb it."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import everstep
from everstep import pytorch

NUM_BATCHES = 300


class SumsTrial(pytorch.PyTorchTrial):
    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context
        self.model = context.wrap_model(nn.Linear(8, 1))
        sgd = torch.optim.SGD(self.model.parameters(), lr=context.get_hparam("lr"), momentum=0.9)
        self.optimizer = context.wrap_optimizer(sgd)

    def build_training_data_loader(self) -> DataLoader[Any]:
        return DataLoader(_sums(4 * NUM_BATCHES), batch_size=self.context.get_per_slot_batch_size(), shuffle=True)

    def build_validation_data_loader(self) -> DataLoader[Any]:
        return DataLoader(_sums(16), batch_size=8)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, torch.Tensor]:
        inputs, sums = batch
        loss = nn.functional.mse_loss(self.model(inputs), sums)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        if not Path("/data/hurry").exists():
            time.sleep(0.4)
        return {"loss": loss}

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, torch.Tensor]:
        inputs, sums = batch
        return {"error": nn.functional.mse_loss(self.model(inputs), sums)}

    def digest(self) -> str:
        weights = self.model.state_dict().values()
        return hashlib.sha256(b"".join(each.cpu().numpy().tobytes() for each in weights)).hexdigest()


def _sums(number: int) -> TensorDataset:
    inputs = torch.randn(number, 8, generator=torch.Generator().manual_seed(number))
    return TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))


def main() -> None:
    info = everstep.get_cluster_info()
    assert info is not None
    latest = info.latest_checkpoint
    print(f"begins with {latest}", flush=True)
    with pytorch.init(hparams=everstep.get_hparams()) as context:
        trial = SumsTrial(context)
        pytorch.Trainer(trial, context).fit(
            max_length=pytorch.Batch(NUM_BATCHES),
            checkpoint_period=pytorch.Batch(10),
            reporting_period=pytorch.Batch(25),
            latest_checkpoint=latest,
        )
        print(f"digest {trial.digest()}", flush=True)


if __name__ == "__main__":
    main()
