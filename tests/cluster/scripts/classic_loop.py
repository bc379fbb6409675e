"""torch's own DDP, loader and optimizer with a sampler and a trainer of ours, as DLRover's users write it; every third
step saves the sampler's position beside the weights, inside the step. Runs under any launcher, or none."""

from __future__ import annotations

import argparse
import hashlib
import os
from pathlib import Path

import torch
from gates import pass_gate
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from everstep import ElasticDistributedSampler, ElasticTrainer
from everstep.events import emit

BATCH = 4


class Samples(Dataset):
    """Each with its own number, for the audit."""

    def __init__(self, size: int) -> None:
        self.inputs = torch.randn(size, 16, generator=torch.Generator().manual_seed(3))

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int, int]:
        return self.inputs[number], int(self.inputs[number, :4].argmax()), number


def save(state: dict, path: Path) -> None:
    aside = path.with_suffix(f".{os.getpid()}")
    torch.save(state, aside)
    aside.replace(path)


def train(options: argparse.Namespace, *, is_distributed: bool) -> None:
    samples = Samples(options.samples)
    sampler = ElasticDistributedSampler(samples)
    loader = DataLoader(samples, BATCH, sampler=sampler, num_workers=2)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))
    sgd = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    halving = torch.optim.lr_scheduler.StepLR(sgd, step_size=len(samples) // BATCH, gamma=0.5)
    parallel = DistributedDataParallel(net) if is_distributed else net
    trainer = ElasticTrainer(parallel, loader, micro_batches=options.micro_batches)
    sgd, halving = trainer.prepare(sgd, halving)

    if options.checkpoint.exists():
        saved = torch.load(options.checkpoint)
        net.load_state_dict(saved["net"])
        sgd.load_state_dict(saved["sgd"])
        sampler.load_state_dict(saved["position"])
        emit("resumed", **saved["position"])

    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        for number, (inputs, kinds, numbers) in enumerate(loader):
            parallel.train()
            pass_gate(trainer.num_steps)
            with trainer.step():
                nn.functional.cross_entropy(parallel(inputs), kinds).backward()
                sgd.step()
                sgd.zero_grad()
                halving.step()
                emit("micro_batch", epoch=epoch, steps=trainer.num_steps, indices=numbers.tolist())
                if trainer.num_steps % 3 == 0:
                    position = sampler.state_dict(number, BATCH)
                    save({"net": net.state_dict(), "sgd": sgd.state_dict(), "position": position}, options.checkpoint)

    digest = hashlib.sha256(b"".join(value.numpy().tobytes() for value in net.state_dict().values()))
    emit("result", weights_digest=digest.hexdigest(), steps=trainer.num_steps, micro_batches=trainer.num_micro_batches)


if __name__ == "__main__":
    words = argparse.ArgumentParser()
    words.add_argument("checkpoint", type=Path)
    words.add_argument("--micro-batches", type=int)
    words.add_argument("--samples", type=int, default=103)
    words.add_argument("--epochs", type=int, default=2)
    is_distributed = "RANK" in os.environ
    if is_distributed:
        distributed.init_process_group("gloo")
    train(words.parse_args(), is_distributed=is_distributed)
    if is_distributed:  # here no DDP is left: one that outlives its group may hang when it goes
        distributed.destroy_process_group()
