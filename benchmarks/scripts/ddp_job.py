"""The job of the benchmarks under torchrun: plain DDP, the same model, a checkpoint every 10 steps."""

from __future__ import annotations

import argparse
import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from everstep.events import emit

sys.path.insert(0, str(Path(__file__).parent))
from device_time import WIDTH, DeviceModel, batch


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--width", type=int, default=WIDTH)
    args = parser.parse_args()
    checkpoint = args.checkpoint
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank, size = dist.get_rank(), dist.get_world_size()
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    model = torch.nn.parallel.DistributedDataParallel(DeviceModel(0.05, args.width))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    step = 0
    if checkpoint.exists():
        state = torch.load(checkpoint)
        model.load_state_dict(state["model"])
        step = state["step"]
    emit("ddp.started", rank=rank, step=step)
    while True:
        optimizer.zero_grad()
        model(batch(step, rank, args.width)).square().mean().backward()
        optimizer.step()
        step += 1
        emit("step.committed", step=step, rank=rank, size=size, attempt=attempt)
        if rank == 0 and step % 10 == 0:
            torch.save({"model": model.state_dict(), "step": step}, checkpoint.with_suffix(".new"))
            checkpoint.with_suffix(".new").replace(checkpoint)


if __name__ == "__main__":
    main()
