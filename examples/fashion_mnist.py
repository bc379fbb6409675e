"""Train a small network to tell shirts from shoes, while workers come and go.

    python examples/fashion_mnist.py                                  # alone
    torchrun --nproc-per-node 3 examples/fashion_mnist.py             # a fixed world
    everstep run --nproc-per-node 3 examples/fashion_mnist.py         # kill workers as you like

All three end with the same weights, bit for bit: a global batch always consists of the same 6 micro-batches, whichever
workers compute them. demo.py runs this script and reads the events that it emits."""

from __future__ import annotations

import argparse
import hashlib
import os
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

import everstep
from everstep.events import emit

DATA = Path(__file__).parent / "data" / "fashion-mnist-8k.npz"


def load(part: str) -> TensorDataset:
    """The "train" or "test" images, from 0 to 1, with their labels."""
    with np.load(DATA) as file:
        images, labels = torch.from_numpy(file[f"{part}_images"]), torch.from_numpy(file[f"{part}_labels"])
    return TensorDataset(images.float().div(255).unsqueeze(1), labels.long())


def build() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, stride=2),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.25),
        nn.Linear(32 * 5 * 5, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def accuracy(model: nn.Module, device: torch.device) -> float:
    images, labels = load("test").tensors
    model.eval()
    with torch.no_grad():
        return (model(images.to(device)).argmax(dim=1).cpu() == labels).float().mean().item()


def digest(model: nn.Module) -> str:
    """A fingerprint of every bit of the weights."""
    sha = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        sha.update(name.encode() + tensor.cpu().numpy().tobytes())
    return sha.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="cuda: one GPU for each worker")
    parser.add_argument(
        "--pause-s", type=float, default=0.0, help="seconds to wait in each micro-batch, for time to watch"
    )
    args = parser.parse_args()

    device = torch.device(f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if args.device == "cuda" else "cpu")
    loader = everstep.DataLoader(load("train"), batch_size=32, shuffle=True)
    model = build().to(device)
    trainer = everstep.ElasticTrainer(model, loader, micro_batches=6)
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.epochs * len(loader))
    optimizer, scheduler = trainer.prepare(optimizer, scheduler)

    for epoch in trainer.epochs(args.epochs):
        for images, labels in loader:
            with trainer.step():
                loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
                emit("loss", step=trainer.num_steps, loss=round(loss.item(), 4))
                time.sleep(args.pause_s)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                scheduler.step()
            everstep.report({"loss": loss.item(), "learning_rate": scheduler.get_last_lr()[0]}, step=trainer.num_steps)
        if trainer.rank == 0:
            print(f"epoch {epoch}  loss {loss.item():.3f}  {trainer.world_size} workers", flush=True)

    result = {"weights_digest": digest(model), "accuracy": accuracy(model, device), "steps": trainer.num_steps}
    emit("result", **result)
    everstep.report({"test accuracy": result["accuracy"]}, step=trainer.num_steps)
    if trainer.rank == 0:
        print(f"test accuracy {result['accuracy']:.1%}, weights {result['weights_digest'][:16]}", flush=True)


if __name__ == "__main__":
    main()
