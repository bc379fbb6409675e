"""A small training job with everything that could spoil bits: dropout, batch norm, clipping, a scheduler.

Synthetic data keyed by (step, leaf), so that each leaf is the same whoever computes it. Ends by telling the digest of
everything it trained."""

from __future__ import annotations

import argparse
import hashlib
import os
import time

import torch
from torch import nn

import everstep
from everstep.events import emit


def build(hidden: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(16, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Dropout(0.25), nn.Linear(hidden, 4)
    )


def batch(step: int, leaf: int, samples: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1_000_003 * step + leaf)
    inputs = torch.randn(samples, 16, generator=generator)
    return inputs, inputs[:, :4].argmax(dim=1)


def digest(*states: dict) -> str:
    sha = hashlib.sha256()
    for state in states:
        for name, value in sorted(state.items()):
            sha.update(name.encode())
            sha.update(value.detach().contiguous().numpy().tobytes())
    return sha.hexdigest()


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    state = optimizer.state_dict()["state"]
    return {f"{p}.{k}": v for p, values in state.items() for k, v in values.items() if isinstance(v, torch.Tensor)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--leaves", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--reduce", default="exact")
    parser.add_argument("--optimizer", default="adam")
    parser.add_argument("--leaf-s", type=float, default=0.0)
    args = parser.parse_args()

    model = everstep.DistributedDataParallel(build(args.hidden))
    trainer = everstep.ElasticTrainer(model, leaves=args.leaves, reduce=args.reduce, seed=7)
    if args.optimizer == "adam":
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=5, gamma=0.5)
    optimizer, scheduler = trainer.prepare(optimizer, scheduler)
    loss_fn = nn.CrossEntropyLoss()

    for leaf in trainer.leaves(steps=args.steps):
        with trainer.step():
            inputs, targets = batch(leaf.step, leaf.index)
            optimizer.zero_grad()
            loss = loss_fn(model(inputs), targets)
            time.sleep(args.leaf_s)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()

    emit(
        "result",
        weights_digest=digest(model.module.state_dict(), optimizer_state(optimizer)),
        lr=optimizer.param_groups[0]["lr"],
        steps=trainer.num_steps,
        pid=os.getpid(),
    )
    print("digest", digest(model.module.state_dict(), optimizer_state(optimizer))[:16], "loss", loss.item())


if __name__ == "__main__":
    main()
