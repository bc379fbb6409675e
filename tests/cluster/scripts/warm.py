"""The native loop, over a loader by `epochs` or by numbered micro-batches, with everything that a body may draw, count
and change. The first body in a process waits at the gate first-WORKER; with --fail WORKER, it raises there instead."""

from __future__ import annotations

import argparse
import os
import random
from collections.abc import Iterator

import numpy
import torch
from gates import pass_first_time, pass_gate
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from train import batch, build, make_optimizer, tell, trace

import everstep
from everstep.events import emit

SAMPLES = 103


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--door", choices=["loader", "steps"], default="steps")
    parser.add_argument("--micro-batches", type=int, default=6)
    parser.add_argument("--fail")
    args = parser.parse_args()
    model = build(16)
    inputs = torch.randn(SAMPLES, 16, generator=torch.Generator().manual_seed(3))
    samples = TensorDataset(inputs, inputs[:, :4].argmax(dim=1), torch.arange(SAMPLES))
    loader = everstep.DataLoader(samples, batch_size=4, shuffle=True, seed=11) if args.door == "loader" else None
    trainer = everstep.ElasticTrainer(model, loader, micro_batches=args.micro_batches, seed=7)
    optimizer = make_optimizer("adam", model)
    optimizer, scheduler = trainer.prepare(optimizer, torch.optim.lr_scheduler.StepLR(optimizer, step_size=5))

    def by_epochs() -> Iterator[tuple[Tensor, Tensor]]:
        assert loader is not None
        for epoch in trainer.epochs(4):
            emit("epoch.begun", epoch=epoch)
            for inputs, targets, indices in loader:
                emit("samples", step=trainer.num_steps, epoch=epoch, indices=indices.tolist())
                yield inputs, targets
            emit("means", epoch=epoch, loss=trainer.means().get("loss"))

    def by_steps() -> Iterator[tuple[Tensor, Tensor]]:
        for micro_batch in trainer.micro_batches(20):
            yield batch(micro_batch.step, micro_batch.index)

    for inputs, targets in by_epochs() if args.door == "loader" else by_steps():
        before = trainer.num_steps
        pass_gate(before)
        with trainer.step():
            pass_first_time()
            if args.fail and args.fail == os.environ.get("EVERSTEP_WORKER"):
                raise ValueError("the script's own error")
            noise = random.random() + numpy.random.rand() + torch.rand(())
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs + 0.01 * noise), targets)
            trainer.log(loss=loss)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            if trainer.rank == 0:
                emit("first", step=before)
        if trainer.num_steps > before:
            trace(trainer, model, optimizer)
    tell(model, optimizer, trainer)


if __name__ == "__main__":
    main()
