"""The job of benchmarks/launch.py: one step of torch's own DDP, and the time at which it was done."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

from everstep.events import emit


def main() -> None:
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(256, 256))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(8, 256)).sum().backward()
    optimizer.step()
    emit("first.step", rank=dist.get_rank())
    dist.barrier()
    os._exit(0)  # torch frees a DDP model under the interpreter's lock and may wait there for a thread that wants it


if __name__ == "__main__":
    main()
