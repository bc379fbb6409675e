"""Endless plain DDP: resumes from the last checkpoint, saves one every 10 steps, emits an event for each step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from device_time import batch

from everstep.events import emit

Ddp = torch.nn.parallel.DistributedDataParallel


def train(model: Ddp, checkpoint: Path, *, rank: int, width: int, **fields: Any) -> None:
    """`fields` are added to the event of each step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    device = next(model.parameters()).device
    step = 0
    if checkpoint.exists():
        state = torch.load(checkpoint, map_location=device)
        model.load_state_dict(state["model"])
        step = state["step"]
    emit("ddp.started", rank=rank, step=step)
    while True:
        optimizer.zero_grad()
        model(batch(step, rank, width).to(device)).square().mean().backward()
        optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize()  # the host has only queued the step
        step += 1
        emit("step.committed", step=step, rank=rank, **fields)
        if rank == 0 and step % 10 == 0:
            torch.save({"model": model.state_dict(), "step": step}, checkpoint.with_suffix(".new"))
            checkpoint.with_suffix(".new").replace(checkpoint)
