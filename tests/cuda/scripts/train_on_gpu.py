"""A small convolutional net on a GPU, with batch norm and dropout; ends by telling the digest of its weights.

With --batch-size, its samples come from a loader, and the last batch of each epoch is short."""

from __future__ import annotations

import argparse
import hashlib
import time
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import everstep
from everstep.events import emit

STEPS = 30
SAMPLES, EPOCHS = 3 * 192 + 50, 3


def draw(number: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(number, 3, 32, 32, generator=generator),
        torch.randint(0, 10, (number,), generator=generator),
    )


def batches(trainer: everstep.ElasticTrainer, loader: everstep.DataLoader | None) -> Iterator[tuple[Tensor, Tensor]]:
    if loader is None:
        for micro_batch in trainer.micro_batches(steps=STEPS):
            yield draw(32, 1000 * micro_batch.step + micro_batch.index)
    else:
        for _ in trainer.epochs(EPOCHS):
            yield from loader


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--micro-batches", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=0)
    parser.add_argument("--micro-batch-s", type=float, default=0.0)
    args = parser.parse_args()
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.Dropout(0.2),
        nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.AvgPool2d(8),
        nn.Flatten(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 10),
    ).cuda()  # fmt: skip
    loader = None
    if args.batch_size:
        loader = everstep.DataLoader(TensorDataset(*draw(SAMPLES, 1)), batch_size=args.batch_size, shuffle=True)
    trainer = everstep.ElasticTrainer(model, loader, micro_batches=args.micro_batches, seed=3)
    optimizer = trainer.prepare(torch.optim.AdamW(model.parameters(), lr=1e-3))
    for host_images, host_labels in batches(trainer, loader):
        with trainer.step():
            images, labels = host_images.cuda(), host_labels.cuda()
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            time.sleep(args.micro_batch_s)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    sha = hashlib.sha256()
    for value in model.state_dict().values():
        sha.update(value.cpu().numpy().tobytes())
    emit("result", weights_digest=sha.hexdigest())
    print(f"digest {sha.hexdigest()}")


if __name__ == "__main__":
    main()
