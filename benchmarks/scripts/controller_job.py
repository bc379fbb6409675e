"""The controller's job: endless batches of 50 ms of device time with leased records; or rounds of plain DDP.

With --rounds, rounds of plain DDP and of the controller take turns in the same processes, on the same batches, and
rank 0 emits the seconds per step of each. With --uneven, one epoch of --batches, shared out by pace: w1 takes four
times as long for a batch as the others."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

import everstep
from everstep.events import emit

sys.path.insert(0, str(Path(__file__).parent))
from device_time import WIDTH, DeviceModel, batch

STEP_S, BATCH = 0.05, 4
SMALL = 100  # the width of a model of 0.3 MB: only the waiting matters


def make_controller(
    model: torch.nn.Module, records: int, global_batches: int | None = None, width: int = WIDTH
) -> tuple[everstep.AllReduceController, Callable[[], None]]:
    """A function that trains on the next batch."""
    service = everstep.RecordIndexService(batch_size=BATCH, dataset_size=records, dataset_name="records")
    controller = everstep.AllReduceController(service, global_batch_num_per_step=global_batches)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    controller.set_broadcast_model(model)
    controller.set_broadcast_optimizer(optimizer)

    def train_one_batch(inputs: torch.Tensor) -> None:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()

    train = controller.elastic_run(train_one_batch)

    def train_next() -> None:
        first, *_ = [service.fetch_record_index() for _ in range(BATCH)]
        train(batch(first, 0, width))

    return controller, train_next


def plain(model: torch.nn.Module) -> Callable[[], None]:
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-3)
    numbers = iter(range(dist.get_rank(), sys.maxsize, dist.get_world_size()))

    def train_next() -> None:
        optimizer.zero_grad()
        ddp(batch(next(numbers), 0, WIDTH)).square().mean().backward()
        optimizer.step()

    return train_next


def compare(controller: everstep.AllReduceController, ours: Callable[[], None], rounds: int, steps: int) -> None:
    dist.init_process_group("gloo")
    systems = {"ddp": plain(DeviceModel(STEP_S)), "controller": ours}
    with controller.scope():
        for step in systems.values():
            step()
            step()
        for number in range(rounds):
            for name in list(systems) if number % 2 else list(systems)[::-1]:
                dist.barrier()
                started = time.perf_counter()
                for _ in range(steps):
                    systems[name]()
                if dist.get_rank() == 0:
                    emit("round", system=name, seconds=(time.perf_counter() - started) / steps)
        dist.barrier()
        emit("compared")
        dist.barrier()


def run_uneven(step_s: float, batches: int, global_batches: int) -> None:
    is_slow = os.environ["EVERSTEP_WORKER"] == "w1"
    model = DeviceModel(4 * step_s if is_slow else step_s, SMALL)
    controller, train_next = make_controller(model, batches * BATCH, global_batches, SMALL)
    emit("script.ready")
    with controller.scope():
        try:
            while True:
                train_next()
        except StopIteration:
            emit("epoch.ended")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--uneven", type=float, metavar="STEP_S")
    parser.add_argument("--batches", type=int, default=0)
    parser.add_argument("--global-batches", type=int)
    args = parser.parse_args()
    emit("script.began")
    torch.set_num_threads(1)
    if args.uneven:
        run_uneven(args.uneven, args.batches, args.global_batches)
        return
    controller, train_next = make_controller(DeviceModel(STEP_S), 1 << 40)
    emit("script.ready")
    if args.rounds:
        compare(controller, train_next, args.rounds, args.steps)
        return
    with controller.scope():
        while True:
            train_next()


if __name__ == "__main__":
    main()
