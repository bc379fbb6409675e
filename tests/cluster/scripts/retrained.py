"""A small trial of an experiment. Leaves a line for each batch: its job, its number, the weights before it.

In `flip`, a number: the batch before which one bit of one weight is flipped."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

import everstep
from everstep import env, pytorch
from everstep.pytorch import Batch


class Trial(pytorch.PyTorchTrial):
    def __init__(self, context: pytorch.PyTorchTrialContext, folder: Path) -> None:
        super().__init__(context)
        self.context, self.folder = context, folder
        torch.manual_seed(context.get_trial_seed())
        net = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 1))
        self.model = context.wrap_model(net)
        lr = context.get_hparams()["lr"]
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr, momentum=0.9))

    def build_training_data_loader(self) -> pytorch.DataLoader:
        inputs = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
        rows = [(each, each.sum().sin()) for each in inputs]
        return pytorch.DataLoader(rows, batch_size=self.context.get_per_slot_batch_size(), shuffle=True)

    build_validation_data_loader = build_training_data_loader

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        before = everstep.weights_digest(self.model)
        with (self.folder / "batches.jsonl").open("a") as file:
            file.write(json.dumps({"job": env.job(), "batch": batch_idx, "weights": before}) + "\n")
        if (flip := self.folder / "flip").exists() and int(flip.read_text()) == batch_idx:
            with torch.no_grad():
                self.model[0].weight.view(-1)[:1].view(torch.int32).bitwise_xor_(1)
        loss = self._loss(batch)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch: Any) -> dict[str, Any]:
        return {"validation_loss": self._loss(batch)}

    def _loss(self, batch: Any) -> Any:
        inputs, wanted = batch
        return nn.functional.mse_loss(self.model(inputs)[:, 0], wanted)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    with pytorch.init(hparams=everstep.get_hparams()) as context:
        pytorch.Trainer(Trial(context, folder), context).fit(validation_period=Batch(6), checkpoint_period=Batch(5))


if __name__ == "__main__":
    main()
