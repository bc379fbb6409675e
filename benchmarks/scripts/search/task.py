"""What every trial of the search benchmark does: a small network learns clothes, batch by batch.

Needs torch and numpy only: the peers' processes import it too. The images are in a folder that `unpack` fills, which
BENCH_IMAGES names: a process that loads them maps the files."""

from __future__ import annotations

import functools
import os
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


FOLDER = "BENCH_IMAGES"


def unpack(source: Path, folder: Path) -> None:
    with np.load(source) as arrays:
        for part in ("train", "test"):
            pixels = arrays[f"{part}_images"].reshape(len(arrays[f"{part}_images"]), -1)
            np.save(folder / f"{part}_images.npy", pixels.astype(np.float32) / 255)
            np.save(folder / f"{part}_labels.npy", arrays[f"{part}_labels"].astype(np.int64))


@functools.cache
def images(part: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Pixels and labels."""
    names = [Path(os.environ[FOLDER]) / f"{part}_{kind}.npy" for kind in ("images", "labels")]
    pixels, labels = (torch.from_numpy(np.load(name, mmap_mode="c")) for name in names)  # "c": torch wants to write
    return pixels, labels


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
