"""Train a small model for a number of steps, with a pause after each micro-batch, and print the digest of its weights.

train.py --steps N [--pace SECONDS] [--until FILE] [--die STEP]     Without a pause from when FILE is there, so that
what happens to it happens while it trains. At STEP the worker that has rank 1 and made the step before it, which no
replacement does, dies by SIGKILL. Other words are printed."""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import time
from pathlib import Path

import torch

import everstep

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--pace", type=float, default=0.02)
parser.add_argument("--until", type=Path)
parser.add_argument("--die", type=int)
arguments, words = parser.parse_known_args()

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
inputs = torch.randn(arguments.steps * 8, 8)
data = torch.utils.data.TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))
loader = torch.utils.data.DataLoader(data, batch_size=2, shuffle=True)
trainer = everstep.ElasticTrainer(model, loader, micro_batches=4)
optimizer = trainer.prepare(torch.optim.SGD(model.parameters(), lr=0.05))
last_step = -1
for batch, target in loader:
    with trainer.step():
        step, rank = trainer.engine.step, trainer.engine.world.rank
        if (step, last_step, rank) == (arguments.die, step - 1, 1):
            os.kill(os.getpid(), signal.SIGKILL)
        last_step = step
        loss = torch.nn.functional.mse_loss(model(batch), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if arguments.until is None or not arguments.until.exists():
        time.sleep(arguments.pace)
digest = hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in model.state_dict().values())).hexdigest()
print(f"words {words!r}", flush=True)
print(f"greeting {os.environ.get('GREETING')!r}", flush=True)
print(f"gradients over {os.environ.get('EVERSTEP_BACKEND')!r}", flush=True)
print(f"secret of {len(os.environ.get('PASSWORD', ''))} letters", flush=True)
print(f"digest {digest}", flush=True)
