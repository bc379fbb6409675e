"""The loop that DLRover's users write, with only the imports changed: torch's own DDP, loader and optimizer, a sampler
and a trainer of ours, and a checkpoint of the sampler saved inside the step. Runs under any launcher, or none."""

from __future__ import annotations

import argparse
import hashlib
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812  its usual name
from gates import pass_gate
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817  its usual name
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, Dataset

from everstep import ElasticDistributedSampler, ElasticTrainer
from everstep.events import emit


class Samples(Dataset):
    def __init__(self, size: int) -> None:
        self.inputs = torch.randn(size, 16, generator=torch.Generator().manual_seed(3))

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int, int]:
        return self.inputs[index], int(self.inputs[index, :4].argmax()), index


def save_checkpoint(checkpoint: dict, path: Path) -> None:
    aside = path.with_suffix(f".{os.getpid()}")
    torch.save(checkpoint, aside)
    aside.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--leaves", type=int)
    parser.add_argument("--samples", type=int, default=103)
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()
    is_distributed = "RANK" in os.environ
    if is_distributed:
        dist.init_process_group("gloo")
    train(args, is_distributed)
    if is_distributed:
        dist.destroy_process_group()  # when no DDP is left: one that outlives its group may hang when it goes


def train(args: argparse.Namespace, is_distributed: bool) -> None:
    train_data = Samples(args.samples)
    #  Setup sampler for elastic training.
    sampler = ElasticDistributedSampler(dataset=train_data)
    train_loader = DataLoader(dataset=train_data, batch_size=4, num_workers=2, sampler=sampler)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4), nn.LogSoftmax(dim=1))
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = StepLR(optimizer, step_size=len(train_data) // train_loader.batch_size, gamma=0.5)
    bare = model
    if is_distributed:
        model = DDP(model)

    # Initialize the ElasticTrainer
    elastic_trainer = ElasticTrainer(model, train_loader, leaves=args.leaves)
    optimizer, scheduler = elastic_trainer.prepare(optimizer, scheduler)

    # Load checkpoint to restore the model and optimizer states.
    if args.checkpoint.exists():
        checkpoint = torch.load(args.checkpoint)
        bare.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        #  Restore sampler from checkpoint.
        train_loader.sampler.load_state_dict(checkpoint.get("sampler", {}))
        emit("resumed", **checkpoint["sampler"])

    for epoch in range(args.epochs):
        train_loader.sampler.set_epoch(epoch)
        for step, (data, target, indices) in enumerate(train_loader):
            model.train()
            pass_gate(elastic_trainer.num_steps)
            # Run the step in the context of ElasticTrainer
            with elastic_trainer.step():
                output = model(data)
                loss = F.nll_loss(output, target)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                scheduler.step()
                emit("leaf", epoch=epoch, steps=elastic_trainer.num_steps, indices=indices.tolist())
                # Save checkpoint periodically.
                if elastic_trainer.num_steps % 3 == 0:
                    model_checkpoint = {
                        "model": bare.state_dict(),
                        "optimizer": optimizer.state_dict(),
                        "sampler": train_loader.sampler.state_dict(step, train_loader.batch_size),
                    }
                    save_checkpoint(model_checkpoint, args.checkpoint)

    digest = hashlib.sha256(b"".join(value.numpy().tobytes() for value in bare.state_dict().values()))
    emit(
        "result", weights_digest=digest.hexdigest(), steps=elastic_trainer.num_steps, leaves=elastic_trainer.num_leaves
    )


if __name__ == "__main__":
    main()
