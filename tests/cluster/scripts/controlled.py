"""One weight, one number per record: after each step the weight tells the mean of the records that were trained on.

ElasticDL's way: a dataset that asks for its records, a wrapped function for one batch. `--slow w1:4` makes a worker
four times slower until the gate "hurry" is open, `--error w1:5` makes its function raise from step 5 on, `--batches
w1:5` ends its loop after so many, `--hold w0:3` has it wait at the gate "batch" in the third of its batches of a step.
With --batches-each there is no service: each worker has so many batches of its own. With --checkpoint, rank 0 saves
after each step, and whoever starts goes on from there. `--trouble w1:5:before` lets its fifth call fail before (or
after) backward, or when the step is committed, and the script goes on."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import shared_gpu  # noqa: F401  before CUDA is used
import torch
import torch.distributed as dist
from gates import is_open, pass_first_time, pass_gate
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as TorchDDP
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset

import everstep
from everstep.events import emit


def value(record: int) -> float:
    return (record * 37 % 1009) / 1009


class Records(Dataset):
    def __init__(self, service: everstep.RecordIndexService) -> None:
        self.service = service

    def __len__(self) -> int:
        return sys.maxsize

    def __getitem__(self, _: int) -> tuple[Tensor, int]:
        record = self.service.fetch_record_index()
        return torch.tensor(value(record), dtype=torch.float64), record


class Weight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.weight * inputs


def own(option: str, others: float) -> float:
    """An option for one worker, NAME:NUMBER, and what all others have."""
    name, _, number = option.partition(":")
    return float(number) if name and name == os.environ.get("EVERSTEP_WORKER") else others


def wrapped(model: nn.Module, how: str) -> nn.Module:
    if how == "torch":
        dist.init_process_group("gloo")
        return TorchDDP(model)
    return everstep.DistributedDataParallel(model) if how == "ours" else model


def save(path: Path, parts: dict[str, Any]) -> None:
    torch.save({name: part.state_dict() for name, part in parts.items()}, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


class Trouble(Exception):
    """What a script may meet and live with."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=640)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--per-shard", type=int, default=2)
    parser.add_argument("--loaders", type=int, default=0)
    parser.add_argument("--batch-s", type=float, default=0.0)
    parser.add_argument("--slow", default="")
    parser.add_argument("--global-batches", type=int)
    parser.add_argument("--passes", type=int, default=1)
    parser.add_argument("--error", default="")
    parser.add_argument("--hold", default="")
    parser.add_argument("--batches", default="")
    parser.add_argument("--batches-each", type=int)
    parser.add_argument("--wrap", choices=["ours", "torch", "no"], default="no")
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--trouble", default="::")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()

    service = everstep.RecordIndexService(
        batch_size=args.batch_size,
        dataset_size=args.records,
        num_epochs=args.epochs,
        shuffle=True,
        dataset_name="records",
        num_minibatches_per_shard=args.per_shard,
        seed=5,
    )
    loader: Iterable[Any] = DataLoader(Records(service), batch_size=args.batch_size, num_workers=args.loaders)
    if args.batches_each is not None:
        loader = [(torch.ones(args.batch_size, dtype=torch.float64), None)] * args.batches_each
    weight = Weight().to(args.device)
    model = wrapped(weight, args.wrap)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = LambdaLR(optimizer, lambda step: 1.0)
    controller = everstep.AllReduceController(
        service if args.batches_each is None else None,
        backward_passes_per_step=args.passes,
        global_batch_num_per_step=args.global_batches,
    )
    controller.set_broadcast_model(model)
    controller.set_broadcast_optimizer(optimizer)
    controller.set_broadcast_state(scheduler)
    parts = {"model": weight, "optimizer": optimizer, "scheduler": scheduler, "controller": controller}
    if args.checkpoint is not None and args.checkpoint.exists():
        for name, state in torch.load(args.checkpoint).items():
            parts[name].load_state_dict(state)
        emit("resumed", step=controller.num_steps)
    worker = os.environ.get("EVERSTEP_WORKER")
    factors = dict(each.split(":") for each in args.slow.split(",") if each)
    pause_s = args.batch_s * float(factors.get(worker or "", 1.0))
    error_step, max_batches = own(args.error, sys.maxsize), own(args.batches, sys.maxsize)
    held_batch = own(args.hold, -1)
    troubled, trouble_at, trouble_where = args.trouble.split(":")
    num_batches = 0
    in_step = (-1, 0)  # how many batches were begun in it

    def meet_trouble(where: str) -> None:
        if (worker, str(num_batches), where) == (troubled, trouble_at, trouble_where):
            raise Trouble(where)

    def train_one_batch(inputs: Tensor) -> Tensor:
        nonlocal in_step
        step = controller.num_steps
        in_step = (step, in_step[1] + 1 if in_step[0] == step else 1)
        emit("batch.begun", step=step, number=num_batches)
        pass_first_time()
        if in_step[1] == held_batch:
            pass_gate("batch")
        meet_trouble("before")
        optimizer.zero_grad()
        loss = model(inputs.to(args.device)).mean()
        time.sleep(0.0 if is_open("hurry") else pause_s)
        if step >= error_step:  # a ghost in just that step would not do
            raise ValueError("the script's own error")
        loss.backward()
        meet_trouble("after")
        before = controller.num_steps
        optimizer.step()
        scheduler.step()
        if controller.num_steps > before:
            emit("weight", step=controller.num_steps, value=weight.weight.item(), scheduled=scheduler.last_epoch)
        meet_trouble("stepped")
        return loss

    train = controller.elastic_run(train_one_batch)
    saved, started = controller.num_steps, time.monotonic()
    with controller.scope():
        for number, (inputs, _) in enumerate(loader):
            if number >= max_batches:
                break
            pass_gate(controller.num_steps)
            num_batches += 1
            try:
                train(inputs)
            except Trouble as trouble:
                emit("caught", where=str(trouble))
            if args.checkpoint is not None and controller.rank == 0 and controller.num_steps > saved:
                saved = controller.num_steps
                save(args.checkpoint, parts)
                emit("saved", step=saved)
    emit("result", weights_digest=f"{weight.weight.item():.9f}", steps=controller.num_steps,
         seconds=time.monotonic() - started, epoch=controller.current_epoch)  # fmt: skip


if __name__ == "__main__":
    main()
