"""What all doors train: a small model with what usually spoils bits, and a tally of the records.

Batch norm, dropout, bfloat16, a buffer that is reassigned, gradients that are clipped, a last batch that is short. The
tally is a parameter with an optimizer of its own: its gradient tells which records a step was made of, so the state
itself knows how often each of them was trained on, whoever died meanwhile.

What a script tells goes to a file of its own, SOAK_FACTS: the disk of the events may be full."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

RECORDS, BATCH, MICRO_BATCHES = (
    203,
    4,
    6,
)  # 203 = 8 * 24 + 11: the last global batch of an epoch has two batches and a short one
STEPS_PER_EPOCH = -(-RECORDS // (BATCH * MICRO_BATCHES))
SAVE_EVERY = 7  # steps
_MICRO_BATCH_S = 0.03  # on average, until the soak says go
_chance = random.Random()  # not the training's


class Records(Dataset[tuple[Tensor, int, int]]):
    def __init__(self) -> None:
        self.inputs = torch.randn(RECORDS, 16, generator=torch.Generator().manual_seed(3))

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, index: int) -> tuple[Tensor, int, int]:
        return self.inputs[index], int(self.inputs[index, :4].argmax()), index


class Net(nn.Module):
    average: Tensor

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last = nn.Linear(16, 24), nn.BatchNorm1d(24), nn.Linear(24, 4)
        self.dropout = nn.Dropout(0.2)
        self.register_buffer("average", torch.zeros(24))
        self.tally = nn.Parameter(torch.zeros(RECORDS, dtype=torch.float64))

    def forward(self, inputs: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            hidden = torch.relu(self.first(inputs))
            hidden = self.norm(hidden) if len(hidden) > 1 else hidden
            if self.training:
                self.average = 0.9 * self.average + 0.1 * hidden.detach().float().mean(0)
            outputs = self.last(self.dropout(hidden - self.average))
        return outputs.float(), self.tally[indices].mean()

    def loss(self, outputs: tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
        scores, counted = outputs
        return nn.functional.cross_entropy(scores, targets) + counted

    def learning(self) -> list[nn.Parameter]:
        return [each for each in self.parameters() if each is not self.tally]


class Count(torch.optim.Optimizer):
    """Adds to each record how often it was in the step: all that were have the same share in the mean."""

    def __init__(self, tally: nn.Parameter) -> None:
        super().__init__([tally], {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for tally in self.param_groups[0]["params"]:
            if tally.grad is not None and (tally.grad != 0).any():
                once = tally.grad[tally.grad != 0].abs().min()
                tally.add_(torch.round(tally.grad / once))


def optimizers(net: Net) -> list[torch.optim.Optimizer]:
    return [torch.optim.SGD(net.learning(), lr=0.05, momentum=0.9), Count(net.tally)]


def clip(parameters: Iterable[nn.Parameter]) -> None:
    nn.utils.clip_grad_norm_(parameters, 0.5)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--reduce", default="exact")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--loaders", type=int, default=0)
    parser.add_argument("--global-batches", type=int)
    return parser.parse_args()


def checkpoints() -> Path:
    return _here() / "checkpoints"


def _here() -> Path:
    return Path(os.environ["SOAK_FACTS"]).parent


# --- what the soak hears ----------------------------------------------------------------------------


def tell(fact: str, **more: Any) -> None:
    known = {"fact": fact, "t": time.monotonic(), "pid": os.getpid(), "worker": os.environ.get("EVERSTEP_WORKER", "")}
    line = json.dumps({**known, "node": os.environ.get("SOAK_NODE", ""), **more}) + "\n"
    descriptor = os.open(os.environ["SOAK_FACTS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, line.encode())
    os.close(descriptor)


def digest(state: dict[str, Tensor]) -> str:
    sha = hashlib.sha256()
    for name, value in sorted(state.items()):
        sha.update(name.encode())
        sha.update(value.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()[:16]


def tell_step(net: Net, step: int, epochs: int) -> None:
    tell("step", step=step, digest=digest(net.state_dict()), done=net.tally.sum().item() / (RECORDS * epochs))


def tell_result(net: Net, step: int, epochs: int) -> None:
    wrong = {record: count for record, count in enumerate(net.tally.tolist()) if count != epochs}
    tell("result", step=step, digest=digest(net.state_dict()), wrong_records=wrong)


def dawdle() -> None:
    """Be slow, at one of four places of a micro-batch, until the soak has done all that it wants to do."""
    if _chance.random() < 0.25 and not (_here() / "go").exists():
        time.sleep(_chance.expovariate(1 / (4 * _MICRO_BATCH_S)) if _chance.random() < 0.5 else 2 * _MICRO_BATCH_S)
