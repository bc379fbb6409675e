"""A small training job with everything that could spoil bits: dropout, batch norm, clipping, a scheduler.

Synthetic data keyed by (step, micro-batch), so that each micro-batch is the same whoever computes it. Ends by telling
the digest of everything it trained. The other scripts borrow from it."""

from __future__ import annotations

import argparse
import hashlib
import logging
import time
from collections.abc import Iterator

import shared_gpu  # noqa: F401  before CUDA is used
import torch
from gates import pass_gate
from torch import nn

import everstep
from everstep.engine.plan import MicroBatch
from everstep.events import emit


class Scale(nn.Module):
    """Parameters of another type, so that there is more than one bucket."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.factors = nn.Parameter(torch.linspace(0.5, 1.5, size, dtype=torch.float64))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs * self.factors.to(inputs.dtype)


def build(hidden: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(16, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), Scale(hidden), nn.Dropout(0.25), nn.Linear(hidden, 4)
    )


def batch(step: int, micro_batch: int, samples: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1_000_003 * step + micro_batch)
    inputs = torch.randn(samples, 16, generator=generator)
    return inputs, inputs[:, :4].argmax(dim=1)


def digest(*states: dict) -> str:
    sha = hashlib.sha256()
    for state in states:
        for name, value in sorted(state.items()):
            sha.update(name.encode())
            sha.update(value.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    state = optimizer.state_dict()["state"]
    return {f"{p}.{k}": v for p, values in state.items() for k, v in values.items() if isinstance(v, torch.Tensor)}


class Ballast:
    """State that costs nothing but time to transfer."""

    def __init__(self, megabytes: int, device: str = "cpu") -> None:
        self.bytes = torch.zeros(megabytes << 20, dtype=torch.uint8, device=device)

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"bytes": self.bytes}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self.bytes.copy_(state["bytes"])


def gated(micro_batches: Iterator[MicroBatch]) -> Iterator[MicroBatch]:
    """Hold each micro-batch of the steps in GATES until the test opens the gate."""
    for micro_batch in micro_batches:
        pass_gate(micro_batch.step, micro_batch=micro_batch.index)
        yield micro_batch


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--micro-batches", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--ballast-mb", type=int, default=0)
    parser.add_argument("--reduce", default="exact")
    parser.add_argument("--optimizer", default="adam")
    parser.add_argument("--micro-batch-s", type=float, default=0.0)
    return parser


def make_optimizer(name: str, model: nn.Module) -> torch.optim.Optimizer:
    if name == "adam":
        return torch.optim.Adam(model.parameters(), lr=1e-2)
    return torch.optim.SGD(model.parameters(), lr=1e-1, momentum=0.9)


def trace(trainer: everstep.ElasticTrainer, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Tell the weights after each committed step, so that a difference can be traced to its first step."""
    emit("weights", step=trainer.num_steps, digest=digest(model.state_dict(), optimizer_state(optimizer))[:16])


def tell(model: nn.Module, optimizer: torch.optim.Optimizer, trainer: everstep.ElasticTrainer) -> None:
    told = digest(model.state_dict(), optimizer_state(optimizer))
    emit("result", weights_digest=told, lr=optimizer.param_groups[0]["lr"], steps=trainer.num_steps)
    print("digest", told[:16])


def main() -> None:
    args = arguments().parse_args()
    logging.basicConfig(level=logging.INFO, format="%(relativeCreated)d %(message)s")
    model = everstep.DistributedDataParallel(build(args.hidden))
    trainer = everstep.ElasticTrainer(model, micro_batches=args.micro_batches, reduce=args.reduce, seed=7)
    trainer.register("ballast", Ballast(args.ballast_mb))
    optimizer = make_optimizer(args.optimizer, model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=5, gamma=0.5)
    optimizer, scheduler = trainer.prepare(optimizer, scheduler)
    loss_fn = nn.CrossEntropyLoss()

    for micro_batch in gated(trainer.micro_batches(steps=args.steps)):
        with trainer.step():
            inputs, targets = batch(micro_batch.step, micro_batch.index)
            optimizer.zero_grad()
            loss = loss_fn(model(inputs), targets)
            time.sleep(args.micro_batch_s)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
        if trainer.num_steps > micro_batch.step:
            trace(trainer, model.module, optimizer)

    tell(model.module, optimizer, trainer)


if __name__ == "__main__":
    main()
