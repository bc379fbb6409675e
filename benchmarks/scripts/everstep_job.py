"""The job of the benchmarks under Everstep: endless steps of 50 ms of device time with all workers."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

import everstep
from everstep import env
from everstep.events import emit

sys.path.insert(0, str(Path(__file__).parent))
from device_time import WIDTH, DeviceModel, batch
from gpus import own_device

STEP_S = 0.05


class Ballast:
    """State that is not trained: it costs nothing until it has to be sent."""

    def __init__(self, size_bytes: int) -> None:
        self.tensor = torch.ones(size_bytes // 4)

    def state_dict(self) -> dict[str, Any]:
        return {"tensor": self.tensor}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.tensor.copy_(state["tensor"])


class Behind(Exception):
    """Raised between the sum and the update: this worker is now a step behind the others."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--micro-batches", type=int, default=4)
    parser.add_argument("--width", type=int, default=WIDTH)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--optimizer", choices=["sgd", "adam"], default="sgd")
    parser.add_argument("--ballast-mb", type=int, default=0)
    parser.add_argument("--lag-every", type=int, default=0, help="at each such step w1 falls behind and w3 dies")
    args = parser.parse_args()
    emit("script.began")
    torch.set_num_threads(1)
    device = own_device(args.device, args.workers)
    model = DeviceModel(STEP_S * args.workers / args.micro_batches, args.width).to(device)
    trainer = everstep.ElasticTrainer(model, micro_batches=args.micro_batches)
    if args.ballast_mb:
        trainer.register("ballast", Ballast(args.ballast_mb << 20))
    make = torch.optim.SGD if args.optimizer == "sgd" else torch.optim.Adam
    optimizer = trainer.prepare(make(model.parameters(), lr=1e-3))
    emit("script.ready")
    has_lagged: set[int] = set()
    for micro_batch in trainer.micro_batches(steps=args.steps):
        committed = trainer.num_steps
        try:
            with trainer.step():
                model(batch(micro_batch.step, micro_batch.index, args.width).to(device)).square().mean().backward()
                is_due = args.lag_every and micro_batch.step and micro_batch.step % args.lag_every == 0
                if (
                    is_due
                    and env.worker() == "w1"
                    and micro_batch.step not in has_lagged
                    and trainer.is_last_micro_batch
                ):
                    has_lagged.add(micro_batch.step)
                    raise Behind
                optimizer.step()
            if trainer.num_steps > committed:
                sum_s = time.monotonic() - model.computed_at
                emit("sum.timed", step=trainer.num_steps, size=trainer.world_size, seconds=sum_s)
            if is_due and env.worker() == "w3" and trainer.num_steps > committed:
                emit("dying", step=trainer.num_steps)
                os.kill(os.getpid(), signal.SIGKILL)
        except Behind:
            pass


if __name__ == "__main__":
    main()
