"""A job to look at: a small network in the native loop. Each step reports metrics and prints a line. With --hostile,
every 20th line and one metric's name try to be more than text."""

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
    parser.add_argument("--hostile", action="store_true")
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
    spike = 3.0 if step == 50 else 0.0
    rate = 0.05 * (1 + math.cos(step / 100)) / 2
    values = {"training/loss": loss + spike, "training/rate": rate, "training/epochs": step / 170}
    if step % 10 == 0:
        values |= {"validation/loss": loss * 1.1, "validation/accuracy": math.exp(-loss)}
    everstep.report(values | ({HOSTILE: float(step)} if args.hostile else {}), step=step)
    is_loud = args.hostile and step % 20 == 0
    print(f"ERROR: {HOSTILE} at step {step}" if is_loud else f"step {step}: loss {loss:.4f}", flush=True)
    time.sleep(args.pause_s)


main()
