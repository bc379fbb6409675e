"""The script of ../01_plain_ddp/ddp.py made elastic: kill workers as you like, add more, or run it alone."""

import argparse
import os
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn, optim

from everstep import DataLoader, DistributedDataParallel, ElasticTrainer, init_process_group

DATA = Path(__file__).parents[1] / "data" / "fashion-mnist-8k.npz"


def load(part):
    """The "train" or "test" images, from 0 to 1, with their labels."""
    with np.load(DATA) as arrays:
        images, labels = torch.from_numpy(arrays[f"{part}_images"]), torch.from_numpy(arrays[f"{part}_labels"])
    return torch.utils.data.TensorDataset(images.float().div(255).unsqueeze(1), labels.long())


def build():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 7 * 7, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


def train(epochs, batch_size, device):
    """Train this process's copy of the model on this process's part of the images."""
    images = load("train")
    loader = DataLoader(images, batch_size, shuffle=True)
    net = DistributedDataParallel(build().to(device), device_ids=[device.index] if device.type == "cuda" else None)
    sgd = optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    trainer = ElasticTrainer(net, loader)
    sgd = trainer.prepare(sgd)

    began = time.perf_counter()
    for epoch in range(epochs):
        print(f"rank {dist.get_rank()} of {dist.get_world_size()} | epoch {epoch}", flush=True)
        loader.set_epoch(epoch)
        for pictures, labels in loader:
            with trainer.step():
                sgd.zero_grad()
                nn.functional.cross_entropy(net(pictures.to(device)), labels.to(device)).backward()
                sgd.step()

    if dist.get_rank() == 0:
        print(f"{epochs} epochs took {time.perf_counter() - began:.1f} s")
        print(f"test accuracy {accuracy(net, device):.1%}")


@torch.no_grad()
def accuracy(net, device):
    pictures, labels = load("test").tensors
    return (net.eval()(pictures.to(device)).argmax(dim=1) == labels.to(device)).float().mean().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32, help="samples per process")
    args = parser.parse_args()

    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    init_process_group("nccl" if device.type == "cuda" else "gloo")
    train(args.epochs, args.batch_size, device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
