"""The native loop with everything that could spoil it: random transforms, a short last batch, a scheduler per step and
one per epoch, validation between epochs, checkpoint and resume. Tells which samples each micro-batch of each step
had."""

from __future__ import annotations

import argparse
import os
import random
from pathlib import Path

import numpy
import torch
from gates import pass_gate
from pauses import pause
from torch import Tensor, nn
from torch.optim.lr_scheduler import LinearLR, StepLR
from torch.utils.data import Dataset
from train import build, make_optimizer, tell, trace

import everstep
from everstep.events import emit


class Samples(Dataset):
    """Sample i, with noise from all three streams if asked for."""

    def __init__(self, size: int, is_noisy: bool) -> None:
        self.inputs = torch.randn(size, 16, generator=torch.Generator().manual_seed(3))
        self.is_noisy = is_noisy

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, int, int]:
        inputs = self.inputs[index]
        if self.is_noisy:
            noise = random.random() + numpy.random.rand() + torch.rand(()).item()
            inputs = inputs + 0.01 * noise
        return inputs, int(self.inputs[index, :4].argmax()), index


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=103)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--micro-batches", type=int, default=6)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--num-workers", type=int, default=0)
    parser.add_argument("--persistent", action="store_true")
    parser.add_argument("--plain", action="store_true", help="without random transforms")
    parser.add_argument("--save", type=Path, help="checkpoint, written after every third step")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    everstep.init_process_group()
    model = everstep.DistributedDataParallel(build(32))
    loader = everstep.DataLoader(
        Samples(args.samples, not args.plain),
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=args.num_workers,
        persistent_workers=args.persistent,
        seed=11,
    )
    trainer = everstep.ElasticTrainer(model, loader, micro_batches=args.micro_batches, seed=7)
    optimizer = make_optimizer("adam", model)
    per_step, per_epoch = LinearLR(optimizer, total_iters=40), StepLR(optimizer, step_size=2, gamma=0.5)
    optimizer, (per_step, per_epoch) = trainer.prepare(optimizer, [per_step, per_epoch])
    parts = {"model": model, "optimizer": optimizer, "step": per_step, "epoch": per_epoch, "trainer": trainer}
    if args.save and args.save.exists():
        for name, state in torch.load(args.save, weights_only=True).items():
            parts[name].load_state_dict(state)
        emit("resumed", step=trainer.num_steps, data=loader.state_dict())
    loss_fn = nn.CrossEntropyLoss()

    for epoch in range(args.epochs):
        loader.set_epoch(epoch)
        for inputs, targets, indices in loader:
            step = trainer.num_steps
            pass_gate(step)
            noise = torch.rand_like(inputs) * 0.01  # drawn outside of the step
            with trainer.step():
                loss = loss_fn(model(inputs + noise), targets)
                emit("micro_batch", step=step, epoch=epoch, indices=indices.tolist(), loss=loss.item())
                trainer.log(loss=loss)
                pause()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                per_step.step()
                if args.save and trainer.num_steps % 3 == 0 and trainer.is_last_micro_batch and trainer.rank == 0:
                    aside = args.save.with_suffix(f".{os.getpid()}")
                    torch.save({name: part.state_dict() for name, part in parts.items()}, aside)
                    aside.rename(args.save)
                    emit("saved", step=trainer.num_steps)
            if trainer.num_steps > step:
                trace(trainer, model.module, optimizer)
        per_epoch.step()
        weight = sum(float(p.detach().double().sum()) for p in model.parameters())
        emit("validated", epoch=epoch, value=everstep.reduce(weight), own=weight)
        emit("means", epoch=epoch, loss=trainer.means().get("loss"))

    tell(model.module, optimizer, trainer)


if __name__ == "__main__":
    main()
