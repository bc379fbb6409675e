"""A small loop that reports its loss at every step, slow enough that something can happen meanwhile."""

from __future__ import annotations

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import everstep

torch.manual_seed(0)
points = torch.rand(512, 2)
loader = DataLoader(TensorDataset(points, (points.sum(dim=1) < 1).long()), batch_size=8, shuffle=True)
model = nn.Linear(2, 2)
trainer = everstep.ElasticTrainer(model, loader, micro_batches=4)
optimizer = trainer.prepare(torch.optim.SGD(model.parameters(), lr=0.1))
for epoch in trainer.epochs(12):
    for inputs, targets in loader:
        with trainer.step():
            loss = nn.functional.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if trainer.num_steps:  # after the first micro-batch of several, no step is committed yet
            everstep.report({"loss": loss.item()}, step=trainer.num_steps)
        time.sleep(0.03)
    print(f"epoch {epoch} is over", flush=True)
