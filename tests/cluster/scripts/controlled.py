"""One weight, one number per record: after each step the weight tells the mean of the records that were trained on.

Seed 001's way: a dataset that asks for its records, a wrapped function for one batch. `--slow w1:4` makes a worker
four times slower; `--trouble w1:5:before` lets its fifth call fail before (or after) backward, or after the step."""

from __future__ import annotations

import argparse
import os
import sys
import time

import torch
from gates import pass_gate
from torch import Tensor, nn
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
    parser.add_argument("--trouble", default="::")
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
    loader = DataLoader(Records(service), batch_size=args.batch_size, num_workers=args.loaders)
    model = Weight()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    controller = everstep.AllReduceController(service, global_batch_num_per_step=args.global_batches,
                                             backward_passes_per_step=args.passes)  # fmt: skip
    controller.set_broadcast_model(model)
    controller.set_broadcast_optimizer(optimizer)
    worker = os.environ.get("EVERSTEP_WORKER", os.environ.get("RANK"))
    factors = dict(each.split(":") for each in args.slow.split(",") if each)
    pause_s = args.batch_s * float(factors.get(worker or "", 1.0))
    troubled, trouble_at, trouble_where = args.trouble.split(":")
    num_batches = 0

    def meet_trouble(where: str) -> None:
        if (worker, str(num_batches), where) == (troubled, trouble_at, trouble_where):
            raise Trouble(where)

    def train_one_batch(inputs: Tensor) -> Tensor:
        emit("batch.begun", step=controller.num_steps, number=num_batches)
        meet_trouble("before")
        optimizer.zero_grad()
        loss = model(inputs).mean()
        time.sleep(pause_s)
        loss.backward()
        meet_trouble("after")
        before = controller.num_steps
        optimizer.step()
        if controller.num_steps > before:
            emit("weight", step=controller.num_steps, value=model.weight.item())
        meet_trouble("stepped")
        return loss

    train = controller.elastic_run(train_one_batch)
    started = time.monotonic()
    with controller.scope():
        for inputs, _ in loader:
            pass_gate(controller.num_steps)
            num_batches += 1
            try:
                train(inputs)
            except Trouble as trouble:
                emit("caught", where=str(trouble))
    emit("result", weights_digest=f"{model.weight.item():.9f}", steps=controller.num_steps,
         seconds=time.monotonic() - started, epoch=controller.current_epoch)  # fmt: skip


if __name__ == "__main__":
    main()
