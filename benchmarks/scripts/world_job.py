"""The job of benchmarks/world.py: a tiny model, one micro-batch for each worker. In the middle, it waits for a file."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from torch import nn

import everstep
from everstep.events import emit

parser = argparse.ArgumentParser()
parser.add_argument("--micro-batches", type=int, required=True)
parser.add_argument("--steps", type=int, required=True)
parser.add_argument("--gate", type=Path, required=True)
args = parser.parse_args()
torch.set_num_threads(1)
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(50, 200), nn.Tanh(), nn.Linear(200, 50))
inputs = torch.randn(args.steps * args.micro_batches * 4, 50)
loader = everstep.DataLoader(inputs, batch_size=4)
trainer = everstep.ElasticTrainer(model, loader, micro_batches=args.micro_batches)
optimizer = trainer.prepare(torch.optim.SGD(model.parameters(), lr=0.01))
for batch in loader:
    while trainer.num_steps == args.steps // 2 and not args.gate.exists():
        time.sleep(0.05)
    with trainer.step():
        optimizer.zero_grad()
        (model(batch) - batch).square().mean().backward()
        optimizer.step()
emit("result", weights_digest=everstep.weights_digest(model))
