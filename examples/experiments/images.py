"""The images that all experiments here learn from, and a small network for them."""

from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

NAME = "fashion-mnist-8k.npz"


def load(part, num_samples=None):
    """The "train" or "test" images, from 0 to 1, with their labels; all of them, or the first `num_samples`.

    A trial runs in a copy of this folder: `everstep e create … --include ../data/fashion-mnist-8k.npz` puts the images
    beside this file."""
    here = Path(__file__).parent
    path = here / NAME if (here / NAME).exists() else here.parent / "data" / NAME
    with np.load(path) as arrays:
        images, labels = torch.from_numpy(arrays[f"{part}_images"]), torch.from_numpy(arrays[f"{part}_labels"])
    return TensorDataset(images[:num_samples].float().div(255).flatten(1), labels[:num_samples].long())


def build(hidden, dropout=0.0):
    return nn.Sequential(nn.Linear(28 * 28, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, 10))
