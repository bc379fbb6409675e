"""Train a small network to tell shirts from shoes; workers may come and go meanwhile.

    python examples/fashion_mnist.py                                  # alone
    torchrun --nproc-per-node 3 examples/fashion_mnist.py             # a fixed world
    everstep run --nproc-per-node 3 examples/fashion_mnist.py         # kill workers as you like

All three end with the same weights, bit for bit: a global batch is always the same 6 leaves, and the samples of a leaf
depend on its step and its number alone, never on who computes it."""

from __future__ import annotations

import argparse
import hashlib
import time
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import everstep
from everstep.events import emit

DATA = Path(__file__).parent / "data" / "fashion-mnist-8k.npz"
LEAVES = 6
LEAF_SAMPLES = 32


def load(part: str) -> tuple[Tensor, Tensor]:
    """The images of the "train" or "test" part, from 0 to 1, and their labels."""
    with np.load(DATA) as file:
        images, labels = torch.from_numpy(file[f"{part}_images"]), torch.from_numpy(file[f"{part}_labels"])
    return images.float().div(255).unsqueeze(1), labels.long()


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


@cache
def permutation(epoch: int, num_samples: int) -> Tensor:
    """The order of the samples in an epoch, from a generator of its own: the same in every process."""
    return torch.randperm(num_samples, generator=torch.Generator().manual_seed(epoch))


def samples(step: int, leaf: int, num_samples: int) -> Tensor:
    """Which samples this leaf consists of. What does not fill a whole global batch is left out of its epoch."""
    steps_per_epoch = num_samples // (LEAVES * LEAF_SAMPLES)
    epoch, step_of_epoch = divmod(step, steps_per_epoch)
    first = (step_of_epoch * LEAVES + leaf) * LEAF_SAMPLES
    return permutation(epoch, num_samples)[first : first + LEAF_SAMPLES]


def accuracy(model: nn.Module) -> float:
    images, labels = load("test")
    model.eval()
    with torch.no_grad():
        return (model(images).argmax(dim=1) == labels).float().mean().item()


def digest(model: nn.Module) -> str:
    """A fingerprint of every bit of the weights."""
    sha = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        sha.update(name.encode() + tensor.numpy().tobytes())
    return sha.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=144)
    parser.add_argument("--pause-s", type=float, default=0.0, help="wait so long in each leaf, to have time to look")
    args = parser.parse_args()

    images, labels = load("train")
    model = build()
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.steps)
    trainer = everstep.ElasticTrainer(model, leaves=LEAVES)
    optimizer, scheduler = trainer.prepare(optimizer, scheduler)

    for leaf in trainer.leaves(steps=args.steps):
        chosen = samples(leaf.step, leaf.index, len(images))
        with trainer.step():
            loss = nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
            time.sleep(args.pause_s)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            emit("loss", step=leaf.step, leaf=leaf.index, loss=round(loss.item(), 4))
        if leaf.index == 0 and leaf.step % 36 == 0:
            print(f"step {leaf.step:3}  loss {loss.item():.3f}  {trainer.world_size} workers", flush=True)

    result = {"weights_digest": digest(model), "accuracy": accuracy(model), "steps": trainer.num_steps}
    emit("result", **result)
    if trainer.rank == 0:
        print(f"test accuracy {result['accuracy']:.1%}, weights {result['weights_digest'][:16]}", flush=True)


if __name__ == "__main__":
    main()
