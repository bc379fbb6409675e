"""Each micro-batch goes through a branch of its own, one branch is used in even steps only, one never: a parameter
that no micro-batch of a step used must be left alone by the optimizer, also by one with weight decay and momentum."""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn
from train import batch, gated, tell, trace

import everstep


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Linear(16, 8)
        self.branches = nn.ModuleList(nn.Linear(8, 4) for _ in range(4))

    def forward(self, inputs: torch.Tensor, branch: int) -> torch.Tensor:
        return self.branches[branch](torch.relu(self.stem(inputs)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--micro-batch-s", type=float, default=0.0)
    args = parser.parse_args()

    model = everstep.DistributedDataParallel(Branches())
    trainer = everstep.ElasticTrainer(model, micro_batches=5, seed=7)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    trainer.prepare(optimizer)
    untouched = model.module.branches[3].weight.detach().clone()
    for micro_batch in gated(trainer.micro_batches(steps=args.steps)):
        with trainer.step(weight=micro_batch.index + 1):
            inputs, targets = batch(micro_batch.step, micro_batch.index, samples=micro_batch.index + 1)
            branch = 2 if micro_batch.index == 4 and micro_batch.step % 2 == 0 else micro_batch.index % 2
            time.sleep(args.micro_batch_s)
            nn.functional.cross_entropy(model(inputs, branch), targets).backward()
            optimizer.step()
        if trainer.num_steps > micro_batch.step:
            trace(trainer, model.module, optimizer)
    assert torch.equal(model.module.branches[3].weight, untouched)
    tell(model.module, optimizer, trainer)


if __name__ == "__main__":
    main()
