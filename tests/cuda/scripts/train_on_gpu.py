"""A small convolutional net on a GPU, with batch norm and dropout; ends by telling the digest of its weights."""

from __future__ import annotations

import argparse
import hashlib
import time

import torch
from torch import nn

import everstep
from everstep.events import emit

STEPS = 30


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--leaves", type=int, default=4)
    parser.add_argument("--leaf-s", type=float, default=0.0)
    args = parser.parse_args()
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.Dropout(0.2),
        nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.AvgPool2d(8),
        nn.Flatten(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 10),
    ).cuda()  # fmt: skip
    trainer = everstep.ElasticTrainer(model, leaves=args.leaves, seed=3)
    optimizer = trainer.prepare(torch.optim.AdamW(model.parameters(), lr=1e-3))
    for leaf in trainer.leaves(steps=STEPS):
        with trainer.step():
            generator = torch.Generator().manual_seed(1000 * leaf.step + leaf.index)
            images = torch.randn(32, 3, 32, 32, generator=generator).cuda()
            labels = torch.randint(0, 10, (32,), generator=generator).cuda()
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            time.sleep(args.leaf_s)
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
