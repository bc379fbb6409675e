"""A native loop with one ordinary mistake in it, made by the worker whose rank is 1.

learning-rate   sets another learning rate
weights         changes the weights after a step
break           leaves each epoch after so many of its own batches (all workers do)
usage           steps the optimizer outside of a step"""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.utils.data import TensorDataset

import everstep


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind")
    kind = parser.parse_args().kind

    torch.manual_seed(0)
    inputs = torch.randn(48, 4)
    loader = everstep.DataLoader(TensorDataset(inputs, inputs.sum(dim=1, keepdim=True)), batch_size=2)
    model = nn.Linear(4, 1)
    trainer = everstep.ElasticTrainer(model, loader, micro_batches=3)
    optimizer = trainer.prepare(torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in trainer.epochs(2):
        for number, (batch, targets) in enumerate(loader):
            is_mine = trainer.rank == 1 and trainer.num_steps == 2
            if kind == "break" and number == 5:
                break
            if is_mine and kind == "learning-rate":
                optimizer.param_groups[0]["lr"] = 0.05
            if is_mine and kind == "usage":
                optimizer.step()
            with trainer.step():
                nn.functional.mse_loss(model(batch), targets).backward()
                optimizer.step()
            if is_mine and kind == "weights":
                with torch.no_grad():
                    model.bias += 1.0


if __name__ == "__main__":
    main()
