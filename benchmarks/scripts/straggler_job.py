"""The job of benchmarks/stragglers.py, through one of three doors: micro-batches sleep, on one worker longer than on
the others. With --equal, shares stay equal.

    straggler_job.py native|controller|trainer --steps 40 --micro-batches 28 --micro-batch-s 0.05 --slow w3:2"""

from __future__ import annotations

import argparse
import math
import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import everstep
from everstep import pytorch
from everstep.engine import dealing
from everstep.events import emit

WIDTH, BATCH = 64, 4


class Numbers(Dataset[Tensor]):
    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> Tensor:
        return torch.linspace(-1, 1, WIDTH) * (1 + index % 97)


class Leased(Numbers):
    """The numbers that a service leases."""

    def __init__(self, service: everstep.RecordIndexService) -> None:
        super().__init__(10**9)
        self._service = service

    def __getitem__(self, index: int) -> Tensor:
        return super().__getitem__(self._service.fetch_record_index())


class Model(nn.Module):
    """Its forward pass takes `pause_s` longer."""

    def __init__(self, pause_s: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.2), nn.Linear(WIDTH, 1))
        self._pause_s = pause_s

    def forward(self, inputs: Tensor) -> Tensor:
        time.sleep(self._pause_s)
        return self.layers(inputs).square().mean()


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-6)


def native(model: nn.Module, args: argparse.Namespace) -> None:
    loader = DataLoader(Numbers(args.steps * args.micro_batches * BATCH), batch_size=BATCH, shuffle=True, num_workers=1)
    trainer = everstep.ElasticTrainer(model, loader, micro_batches=args.micro_batches)
    optimizer = trainer.prepare(make_optimizer(model))
    for _ in trainer.epochs(1):
        for inputs in loader:
            with trainer.step():
                optimizer.zero_grad()
                model(inputs).backward()
                optimizer.step()


def controller(model: nn.Module, args: argparse.Namespace) -> None:
    size = args.steps * args.micro_batches * BATCH
    service = everstep.RecordIndexService(batch_size=BATCH, dataset_size=size, dataset_name="numbers")
    allreduce = everstep.AllReduceController(service, global_batch_num_per_step=args.micro_batches)
    optimizer = make_optimizer(model)
    allreduce.set_broadcast_model(model)
    allreduce.set_broadcast_optimizer(optimizer)

    @allreduce.elastic_run
    def train(inputs: Tensor) -> None:
        optimizer.zero_grad()
        model(inputs).backward()
        optimizer.step()

    with allreduce.scope():
        for inputs in DataLoader(Leased(service), batch_size=BATCH):
            train(inputs)


class Trial(pytorch.PyTorchTrial):
    def __init__(self, context: pytorch.PyTorchTrialContext, model: nn.Module, samples: int) -> None:
        self.context, self._samples = context, samples
        self.model = context.wrap_model(model)
        self.optimizer = context.wrap_optimizer(make_optimizer(self.model))

    def build_training_data_loader(self) -> Any:
        return pytorch.DataLoader(Numbers(self._samples), batch_size=BATCH, shuffle=True, num_workers=1)

    def build_validation_data_loader(self) -> Any:
        return pytorch.DataLoader(Numbers(BATCH), batch_size=BATCH)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        loss = self.model(batch)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        return {"loss": self.model(batch)}


def trainer(model: nn.Module, args: argparse.Namespace) -> None:
    here = Path(os.environ["EVERSTEP_EVENTS"]).parent  # so that no run continues another's
    os.chdir(here)
    os.environ["EVERSTEP_HOME"] = str(here / "home")
    with pytorch.init(micro_batches=args.micro_batches, enable_tensorboard_logging=False) as context:
        trial = Trial(context, model, args.steps * args.micro_batches * BATCH)
        length = pytorch.Batch(args.steps)
        pytorch.Trainer(trial, context).fit(max_length=length, reporting_period=length, checkpoint_policy="none")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("door", choices=["native", "controller", "trainer"])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--micro-batches", type=int, default=28)
    parser.add_argument("--micro-batch-s", type=float, default=0.05)
    parser.add_argument("--slow", default="w3:2")
    parser.add_argument("--equal", action="store_true")
    args = parser.parse_args()
    if args.equal:
        dealing.LEAST_GAIN = math.inf
    torch.set_num_threads(1)
    worker, _, factor = args.slow.partition(":")
    is_slow = os.environ.get("EVERSTEP_WORKER") == worker
    model = Model(args.micro_batch_s * float(factor) if is_slow else args.micro_batch_s)
    {"native": native, "controller": controller, "trainer": trainer}[args.door](model, args)
    emit("result", weights_digest=everstep.weights_digest(model))


if __name__ == "__main__":
    main()
