"""Plain DDP on gloo, or on nccl with --device=cuda, as torchrun's users write it: resumes from the checkpoint that rank
0 saves after each step.

Nothing in it is ours but the events by which a test follows it.   ddp.py CHECKPOINT [--steps N] [--step-s S]"""

from __future__ import annotations

import argparse
import hashlib
import os
import time
from pathlib import Path

import shared_gpu  # noqa: F401  before CUDA is used
import torch
import torch.distributed as dist
from gates import pass_gate
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817  its usual name

from everstep.events import emit


class Trainer:
    def __init__(self, model: nn.Module, optimizer: optim.Optimizer, criterion: nn.Module, checkpoint: Path) -> None:
        self.rank = int(os.environ["RANK"])
        self.step, self.checkpoint = 0, checkpoint
        if checkpoint.exists():
            saved = torch.load(checkpoint)
            model.load_state_dict(saved["model"])
            self.step = saved["step"]
        self.model, self.optimizer, self.criterion = DDP(model), optimizer, criterion
        self.device = next(model.parameters()).device

    def fit(self, steps: int, step_s: float) -> None:
        told = {"rank": self.rank, "size": dist.get_world_size(), "port": int(os.environ["MASTER_PORT"])}
        emit("ddp.formed", step=self.step, restarts=int(os.environ["TORCHELASTIC_RESTART_COUNT"]), **told)
        while self.step < steps:
            pass_gate(self.step, rank=self.rank)
            self._run_step()
            emit("ddp.step", step=self.step, **told)
            time.sleep(step_s)

    def _run_step(self) -> None:
        generator = torch.Generator().manual_seed(1000 * self.step + self.rank)
        features = torch.randn(8, 16, generator=generator).to(self.device)
        self.optimizer.zero_grad()
        self.criterion(self.model(features), features[:, :4].argmax(dim=1)).backward()
        self.optimizer.step()
        self.step += 1
        if self.rank == 0:
            aside = self.checkpoint.with_suffix(".new")
            torch.save({"model": self.model.module.state_dict(), "step": self.step}, aside)
            aside.replace(self.checkpoint)


def train(checkpoint: Path, steps: int, step_s: float, device: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).to(device)
    trainer = Trainer(model, optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss(), checkpoint)
    trainer.fit(steps, step_s)
    digest = hashlib.sha256(b"".join(value.cpu().numpy().tobytes() for value in model.state_dict().values()))
    emit("result", weights_digest=digest.hexdigest(), steps=trainer.step)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--step-s", type=float, default=0.02)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    dist.init_process_group("nccl" if args.device == "cuda" else "gloo")
    train(args.checkpoint, args.steps, args.step_s, args.device)
    dist.destroy_process_group()  # when no DDP is left: one that outlives its group may hang when it goes


if __name__ == "__main__":
    main()
