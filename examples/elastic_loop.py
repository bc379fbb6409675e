"""The loop of plain_loop.py, elastic: run it with `everstep run --nproc-per-node 3` and kill workers as you like."""

from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import everstep

data = np.load(Path(__file__).parent / "data" / "fashion-mnist-8k.npz")
images = torch.from_numpy(data["train_images"]).float().flatten(1) / 255
labels = torch.from_numpy(data["train_labels"]).long()
loader = DataLoader(TensorDataset(images, labels), batch_size=32, shuffle=True)

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
trainer = everstep.ElasticTrainer(model, loader, micro_batches=8)
optimizer = trainer.prepare(optimizer)
for _ in range(3):
    for inputs, targets in loader:
        with trainer.step():
            loss = nn.functional.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
print(f"loss {loss.item():.3f}")
