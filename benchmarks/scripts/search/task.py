"""What every trial of the search benchmark does: a small network learns clothes, batch by batch.

Needs torch and numpy only: the peers' processes import it too."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

NAME = "fashion-mnist-8k.npz"
BATCH_SIZE = 32
RUNGS = (16, 64, 256)  # batches
DIVISOR = 4
NUM_TRIALS = 32
LOWEST_RATE, HIGHEST_RATE = 1e-4, 1.0
MOMENTA = (0.0, 0.9)
NARROWEST, WIDEST = 16, 256


@functools.cache
def images(part: str) -> tuple[torch.Tensor, torch.Tensor]:
    here = Path(__file__).parent
    path = here / NAME if (here / NAME).exists() else here.parents[2] / "examples" / "data" / NAME
    with np.load(path) as arrays:
        found, labels = torch.from_numpy(arrays[f"{part}_images"]), torch.from_numpy(arrays[f"{part}_labels"])
    return found.float().div(255).flatten(1), labels.long()


def build(hidden: int) -> nn.Module:
    return nn.Sequential(nn.Linear(28 * 28, hidden), nn.ReLU(), nn.Linear(hidden, 10))


class Task:
    """A trial as the peers run it."""

    def __init__(self, hparams: dict[str, Any], seed: int = 0) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(seed)
        self.num_batches = 0
        self._model = build(hparams["hidden"])
        rate, momentum = hparams["learning_rate"], hparams["momentum"]
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=rate, momentum=momentum)

    def train_to(self, num_batches: int) -> None:
        pixels, labels = images("train")
        while self.num_batches < num_batches:
            picked = torch.randint(len(pixels), (BATCH_SIZE,))
            self._optimizer.zero_grad()
            functional.cross_entropy(self._model(pixels[picked]), labels[picked]).backward()
            self._optimizer.step()
            self.num_batches += 1

    def validate(self) -> float:
        pixels, labels = images("test")
        with torch.no_grad():
            loss = float(functional.cross_entropy(self._model(pixels), labels))
        return loss if loss == loss else 1e9
