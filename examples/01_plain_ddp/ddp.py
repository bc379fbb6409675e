"""The training of single.py on several processes, with DistributedDataParallel by hand: README.md has the commands."""

import argparse
import os
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

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


class Trainer:
    """Trains this process's copy of the model on this process's part of the data."""

    def __init__(self, model, train_loader, optimizer, criterion, device):
        self.device = device
        self.model = DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)
        self.train_loader = train_loader
        self.optimizer = optimizer
        self.criterion = criterion

    def _run_epoch(self):
        for images, labels in self.train_loader:
            images, labels = images.to(self.device), labels.to(self.device)
            self.optimizer.zero_grad()
            loss = self.criterion(self.model(images), labels)
            loss.backward()
            self.optimizer.step()

    def fit(self, epochs):
        self.model.train()
        for epoch in range(epochs):
            print(f"rank {dist.get_rank()} of {dist.get_world_size()} | epoch {epoch}", flush=True)
            self.train_loader.sampler.set_epoch(epoch)
            self._run_epoch()

    def accuracy(self):
        images, labels = load("test").tensors
        self.model.eval()
        with torch.no_grad():
            return (self.model(images.to(self.device)).argmax(dim=1) == labels.to(self.device)).float().mean().item()


def train(epochs, batch_size, device):
    train_data = load("train")
    train_loader = DataLoader(
        dataset=train_data,
        batch_size=batch_size,
        sampler=DistributedSampler(train_data),
    )
    model = build().to(device)
    optimizer = optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    trainer = Trainer(model, train_loader, optimizer, nn.CrossEntropyLoss(), device)

    began = time.perf_counter()
    trainer.fit(epochs)
    if dist.get_rank() == 0:
        print(f"{epochs} epochs took {time.perf_counter() - began:.1f} s")
        print(f"test accuracy {trainer.accuracy():.1%}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32, help="of each process")
    args = parser.parse_args()

    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    train(args.epochs, args.batch_size, device)
    # Here no DDP is left: with gloo, one that outlives its group may hang when it goes.
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
