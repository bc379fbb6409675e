"""A script that uses torch.distributed's default group: before it joins, inside every micro-batch and between the
steps."""

from __future__ import annotations

import argparse
import time

import torch
import torch.distributed as dist
from gates import hold
from torch import nn
from train import batch, build, gated, make_optimizer, tell, trace

import everstep
from everstep.errors import PeerLost
from everstep.events import emit


def count(device: str) -> int:
    """How many workers take part in a collective."""
    ones = torch.ones(1, device=device)
    dist.all_reduce(ones)
    return int(ones)


def tell_group(trainer: everstep.ElasticTrainer, device: str) -> None:
    """After a commit, where all workers are: who is there, by our collective and by theirs."""
    everybody = 0
    hold("collective", trainer.num_steps)
    emit("group.asked", step=trainer.num_steps)
    try:
        everybody = count(device)
    except PeerLost:
        emit("group.lost", step=trainer.num_steps)
    mean = everstep.reduce(trainer.num_steps)
    rank, size = dist.get_rank(), dist.get_world_size()
    is_same = (rank, size) == (trainer.rank, trainer.world_size)
    emit("group.told", step=trainer.num_steps, count=everybody, rank=rank, size=size, is_same=is_same, mean=mean)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--micro-batch-s", type=float, default=0.0)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()

    everstep.init_process_group("nccl" if args.device == "cuda" else None)
    dist.barrier()  # a newcomer is alone here
    emit("group.first", rank=dist.get_rank(), size=dist.get_world_size(), count=count(args.device))

    model = everstep.DistributedDataParallel(build(hidden=32).to(args.device))
    trainer = everstep.ElasticTrainer(model, micro_batches=6, seed=7)
    optimizer = trainer.prepare(make_optimizer("sgd", model))
    for micro_batch in gated(trainer.micro_batches(steps=args.steps)):
        with trainer.step():
            inputs, targets = batch(micro_batch.step, micro_batch.index)
            time.sleep(args.micro_batch_s)
            nn.functional.cross_entropy(model(inputs.to(args.device)), targets.to(args.device)).backward()
            optimizer.step()
        if trainer.num_steps > micro_batch.step:
            trace(trainer, model.module, optimizer)
            tell_group(trainer, args.device)
    tell(model.module, optimizer, trainer)


if __name__ == "__main__":
    main()
