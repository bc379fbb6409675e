"""A small convolutional network learns clothes, with the Trainer. Hyperparameters say how much there is to compute.

Each process writes the time at which it begins each micro-batch, and the number of the batch, into a file of its own,
in the folder `marks`: `TRIAL-PID`, eight bytes per number."""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import everstep
from everstep import pytorch

NUM_VALIDATED = 64


def load(path: str, part: str) -> tuple[torch.Tensor, torch.Tensor]:
    with np.load(path) as arrays:
        pixels = torch.from_numpy(arrays[f"{part}_images"].astype(np.float32) / 255).reshape(-1, 1, 28, 28)
        return pixels, torch.from_numpy(arrays[f"{part}_labels"].astype(np.int64))


def images(path: str, part: str) -> TensorDataset:
    return TensorDataset(*everstep.once_per_node(load, path, part))


class ClothesTrial(pytorch.PyTorchTrial):
    def __init__(self, context):
        self.context = context
        self._path = context.get_hparam("images")
        self._batch_size = context.get_per_slot_batch_size()
        width = context.get_hparam("width")
        model = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(4),
            nn.Flatten(),
            nn.Linear(49 * width, 10),
        )
        self.model = context.wrap_model(model)
        rate = context.get_hparam("learning_rate")
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=rate, momentum=0.9))
        name = f"{everstep.get_cluster_info().trial.trial_id}-{os.getpid()}"
        self._marks = os.open(Path(context.get_hparam("marks")) / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def build_training_data_loader(self):
        return DataLoader(images(self._path, "train"), batch_size=self._batch_size, shuffle=True)

    def build_validation_data_loader(self):
        return DataLoader(
            torch.utils.data.Subset(images(self._path, "test"), range(NUM_VALIDATED)), batch_size=NUM_VALIDATED
        )

    def train_batch(self, batch, epoch_idx, batch_idx):
        os.write(self._marks, struct.pack("dd", time.time(), batch_idx))
        pixels, labels = batch
        loss = functional.cross_entropy(self.model(pixels), labels)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {}

    def evaluate_batch(self, batch, batch_idx):
        pixels, labels = batch
        return {"loss": functional.cross_entropy(self.model(pixels), labels)}


def main():
    with pytorch.init(hparams=everstep.get_cluster_info().trial.hparams) as context:
        pytorch.Trainer(ClothesTrial(context), context).fit()


if __name__ == "__main__":
    main()
