"""Train a small model for ten steps: report each, print it, and save the last.

recorded.py CHECKPOINTS"""

from __future__ import annotations

import sys

import torch

import everstep

torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
inputs = torch.randn(80, 8)
data = torch.utils.data.TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))
loader = everstep.DataLoader(data, batch_size=2, shuffle=True)
trainer = everstep.ElasticTrainer(model, loader, micro_batches=4)
optimizer = trainer.prepare(torch.optim.SGD(model.parameters(), lr=0.05))
with everstep.Checkpointer(sys.argv[1], every=5) as checkpointer:
    for batch, target in loader:
        with trainer.step():
            loss = torch.nn.functional.mse_loss(model(batch), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            is_done = trainer.is_last_micro_batch
        if is_done:
            everstep.report({"loss": loss.detach()}, step=trainer.num_steps)
            print(f"made step {trainer.num_steps}", flush=True)
            checkpointer.save(trainer.num_steps, {"model": model})
