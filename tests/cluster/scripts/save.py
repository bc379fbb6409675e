"""A loop that saves: after step s every parameter is s, and so is all else in its state, so that a torn one is seen.

save.py FOLDER [--steps 10] [--every 1] [--memory-every 1] [--mb 4] [--step-s 0] [--keep-going]: takes up where the last
checkpoint ends."""

from __future__ import annotations

import argparse
import logging
import time

import torch
from gates import pass_gate
from torch import nn

import everstep
from everstep.events import emit


class Counter(nn.Module):
    """Its buffer changes in the forward, as batch norm's do."""

    def __init__(self, megabytes: float) -> None:
        super().__init__()
        size = int(megabytes * 1e6 / 4 / 8)
        self.weights = nn.ParameterList([torch.zeros(size) for _ in range(8)])
        self.register_buffer("seen", torch.zeros(1000))

    def forward(self) -> torch.Tensor:
        self.seen += 1
        return -sum(weight.sum() for weight in self.weights)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--every", type=int)
    parser.add_argument("--memory-every", type=int)
    parser.add_argument("--mb", type=float, default=4.0)
    parser.add_argument("--step-s", type=float, default=0.0)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    model = Counter(args.mb)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    history: list[int] = []
    checkpointer = everstep.Checkpointer(args.folder, every=args.every, memory_every=args.memory_every)
    step = 0
    if (saved := checkpointer.load()) is not None:
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        history, step = saved["history"], saved["step"]
    while step < args.steps:
        pass_gate(step)
        optimizer.zero_grad()
        model().backward()
        optimizer.step()
        step += 1
        history.append(step)
        checkpointer.save(step, {"model": model, "optimizer": optimizer, "history": history, "step": step})
        emit("saved", step=step)
        time.sleep(args.step_s)
    checkpointer.close()
    emit("result", steps=step)


if __name__ == "__main__":
    main()
