"""A job to look at: a small network in the native loop. Each step reports metrics and prints a line; every 20th line and
one metric's name try to be more than text."""

from __future__ import annotations

import argparse
import itertools
import math
import time

import torch
from torch import nn
from torch.utils.data import TensorDataset

import everstep

HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pause-s", type=float, default=0.1)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--more-metrics", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    args = arguments()
    everstep.init_process_group()
    model = everstep.DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)))
    inputs = torch.randn(4096, 16, generator=torch.Generator().manual_seed(3))
    data = TensorDataset(inputs, inputs[:, :4].argmax(1))
    loader = everstep.DataLoader(data, batch_size=4, shuffle=True, seed=11)
    trainer = everstep.ElasticTrainer(model, loader, micro_batches=6, seed=7)
    optimizer = trainer.prepare(torch.optim.SGD(model.parameters(), lr=0.05))
    for epoch in itertools.count():
        loader.set_epoch(epoch)
        for x, label in loader:
            step = trainer.num_steps
            with trainer.step():
                loss = nn.functional.cross_entropy(model(x), label)
                loss.backward()
                optimizer.step()
            if trainer.num_steps > step:
                tell(trainer.num_steps, float(loss.detach()), args)
            if trainer.num_steps >= args.steps:
                return


def tell(step: int, loss: float, args: argparse.Namespace) -> None:
    wave = {f"wave/{i}": math.sin(step / 20 + i) for i in range(args.more_metrics)}
    spike = 3.0 if step == 50 else 0.0
    everstep.report(
        {"training/loss": loss + spike, "training/rate": 0.05, "training/epochs": step / 170, HOSTILE: float(step)} | wave,
        step=step,
    )
    print(f"ERROR: {HOSTILE} at step {step}" if step % 20 == 0 else f"step {step}: loss {loss:.4f}", flush=True)
    time.sleep(args.pause_s)


main()
