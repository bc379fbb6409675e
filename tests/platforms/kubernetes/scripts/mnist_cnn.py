"""What seed 000's manifest starts: a CNN on images that a text file lists, trained with ElasticTrainer.

Each micro-batch takes almost half a second until there is a file `hurry` in /data, so that a test has time to disturb
it."""

from __future__ import annotations

import argparse
import hashlib
import os
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn, optim
from torch.nn import functional as F  # noqa: N812  its usual name
from torch.utils.data import DataLoader, TensorDataset

from everstep import DistributedDataParallel, ElasticDistributedSampler, ElasticTrainer

parser = argparse.ArgumentParser()
parser.add_argument("--training_data", type=Path, required=True)
parser.add_argument("--validation_data", type=Path, required=True)
parser.add_argument("--epochs", type=int, default=20)
args = parser.parse_args()
IS_SLOW = "EVERSTEP_WORKER" in os.environ


def load(listed: Path) -> TensorDataset:
    rows = [line.rsplit(" ", 1) for line in listed.read_text().splitlines()]
    images = np.stack([np.load(listed.parent / name) for name, _ in rows])
    return TensorDataset(
        torch.from_numpy(images).float().div(255).unsqueeze(1), torch.tensor([int(n) for _, n in rows])
    )


torch.manual_seed(0)
train_data = load(args.training_data)
train_loader = DataLoader(train_data, batch_size=4, sampler=ElasticDistributedSampler(train_data))
model = DistributedDataParallel(nn.Sequential(nn.Conv2d(1, 4, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(256, 10)))
trainer = ElasticTrainer(model, train_loader, micro_batches=4)
optimizer = trainer.prepare(optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
for _epoch in trainer.epochs(args.epochs):
    for data, target in train_loader:
        with trainer.step():
            loss = F.cross_entropy(model(data), target)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        if IS_SLOW and not Path("/data/hurry").exists():
            time.sleep(0.4)
digest = hashlib.sha256(b"".join(each.numpy().tobytes() for each in model.state_dict().values())).hexdigest()
images, labels = load(args.validation_data).tensors
correct = (model(images).argmax(dim=1) == labels).float().mean().item()
print(f"accuracy {correct:.2f}, digest {digest}", flush=True)
