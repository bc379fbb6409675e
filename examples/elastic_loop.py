"""The loop of plain_loop.py, elastic. Run it with `everstep run --nproc-per-node 3` and kill workers as you like."""

from pathlib import Path

import numpy as np
import torch
from torch import nn

import everstep

data = np.load(Path(__file__).parent / "data" / "fashion-mnist-8k.npz")
images = torch.from_numpy(data["train_images"]).float().flatten(1) / 255
labels = torch.from_numpy(data["train_labels"]).long()


def batch(number):
    chosen = torch.arange(32 * number, 32 * (number + 1)) % len(images)
    return images[chosen], labels[chosen]


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
trainer = everstep.ElasticTrainer(model, leaves=8)
optimizer = trainer.prepare(optimizer)
for leaf in trainer.leaves(steps=100):
    inputs, targets = batch(8 * leaf.step + leaf.index)
    with trainer.step():
        loss = nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(f"loss {loss.item():.3f}")
