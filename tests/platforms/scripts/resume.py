"""Train a small model and save a checkpoint every fifth step; started again, go on from the newest.

resume.py FOLDER STEPS PACE UNTIL     FOLDER holds the checkpoints; PACE seconds after each micro-batch until there is
a file UNTIL, so that what happens to it happens while it trains."""

from __future__ import annotations

import hashlib
import sys
import time
from pathlib import Path

import torch

import everstep

folder, num_steps, pace_s, until = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), Path(sys.argv[4])
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
inputs = torch.randn(num_steps * 8, 8)
data = torch.utils.data.TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))
loader = everstep.DataLoader(data, batch_size=2, shuffle=True)
trainer = everstep.ElasticTrainer(model, loader, micro_batches=4)
optimizer = trainer.prepare(torch.optim.SGD(model.parameters(), lr=0.05))
state = {"model": model, "optimizer": optimizer, "trainer": trainer}
with everstep.Checkpointer(folder, every=5) as checkpointer:
    if (saved := checkpointer.load()) is not None:
        for name, part in state.items():
            part.load_state_dict(saved[name])
        print(f"going on from step {trainer.num_steps}", flush=True)
    for batch, target in loader:
        with trainer.step():
            loss = torch.nn.functional.mse_loss(model(batch), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            is_done = trainer.is_last_micro_batch
        if is_done:
            checkpointer.save(trainer.num_steps, state)
        if not until.exists():
            time.sleep(pace_s)
digest = hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in model.state_dict().values())).hexdigest()
print(f"digest {digest} after {trainer.num_steps} steps", flush=True)
