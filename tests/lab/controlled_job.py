"""A job with a controller and one worker, which a test calls step by step: its means can be done in the head."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.data import DataLoader, Dataset

from everstep import AllReduceController, RecordIndexService
from everstep.engine import process_engine

_services: list[RecordIndexService] = []


def end() -> None:
    """Whatever a test has left."""
    while _services:
        _services.pop().close()
    process_engine.close()


def serve(size: int, batch_size: int = 4, **more: Any) -> RecordIndexService:
    _services.append(RecordIndexService(batch_size=batch_size, dataset_size=size, **more))
    return _services[-1]


class Numbers(Dataset[Tensor]):
    """The value of a record is its number."""

    def __init__(self, service: RecordIndexService) -> None:
        self.service = service

    def __len__(self) -> int:
        return sys.maxsize

    def __getitem__(self, _: int) -> Tensor:
        return torch.tensor(self.service.fetch_record_index(), dtype=torch.float64)


class Slope(nn.Module):
    """The gradient of `weight` is the mean of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self, inputs: Tensor) -> Tensor:
        return (self.weight * inputs).mean()


class CountingSGD(SGD):
    num_updates = 0

    def step(self, closure: Any = None) -> Any:
        self.num_updates += 1
        return super().step(closure)


class Job:
    """A model, an optimizer and a controller; `seen` is what the training function was called with."""

    def __init__(self, service: RecordIndexService | None = None, **options: Any) -> None:
        self.model: nn.Module = Slope()
        self.optimizer = CountingSGD(self.model.parameters(), lr=1.0)
        self.controller = AllReduceController(service, **options)
        self.service = service
        self.seen: list[list[float]] = []
        self.before_step: Callable[[], None] = lambda: None
        self.after_step: Callable[[], None] = lambda: None
        self.train = self.controller.elastic_run(self.train_one_batch)

    def broadcast(self) -> Job:
        self.controller.set_broadcast_model(self.model)
        self.controller.set_broadcast_optimizer(self.optimizer)
        return self

    def train_one_batch(self, inputs: Tensor) -> Tensor:
        self.seen.append(inputs.tolist())
        self.optimizer.zero_grad()
        loss: Tensor = self.model(inputs)
        loss.backward()
        self.before_step()
        self.optimizer.step()
        self.after_step()
        return loss

    @property
    def moved(self) -> float:
        """The sum of the gradients of all steps."""
        return -sum(parameter.item() for parameter in self.model.parameters())

    @property
    def loader(self) -> DataLoader[Tensor]:
        assert self.service is not None
        return DataLoader(Numbers(self.service), batch_size=self.service.batch_size)

    def run(self) -> Job:
        with self.controller.scope():
            for inputs in self.loader:
                self.train(inputs)
        return self


def batch(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)
