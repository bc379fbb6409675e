"""Train a small classifier. Runs alone (python train.py), and on machines that come and go (everstep run -f job.yaml).

The data is made up: put your own in the place of `made_up_data`, and your model in that of `model`."""

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import everstep


def made_up_data(num_samples: int) -> TensorDataset:
    """Points of a plane in two classes: inside a circle, and outside of it."""
    points = torch.rand(num_samples, 2, generator=torch.Generator().manual_seed(1)) * 2 - 1
    return TensorDataset(points, (points.square().sum(dim=1) < 0.6).long())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--learning-rate", type=float, default=0.02)
    parser.add_argument("--output", type=Path, default=Path("model.pt"))
    options = parser.parse_args()

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2))
    loader = DataLoader(made_up_data(4096), batch_size=32, shuffle=True)
    # A global batch is eight times the loader's, whatever the number of workers: the result is the same, bit for bit.
    trainer = everstep.ElasticTrainer(model, loader, leaves=8)
    optimizer = trainer.prepare(torch.optim.Adam(model.parameters(), lr=options.learning_rate))
    for epoch in range(options.epochs):
        for points, classes in loader:
            with trainer.step():
                loss = nn.functional.cross_entropy(model(points), classes)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        if trainer.rank == 0:
            print(f"epoch {epoch + 1}: loss {loss.item():.3f} with {trainer.world_size} workers", flush=True)
    if trainer.rank == 0:
        torch.save(model.state_dict(), options.output)
        print(f"saved {options.output.resolve()}", flush=True)


if __name__ == "__main__":
    main()
