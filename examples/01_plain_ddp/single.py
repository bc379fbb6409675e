"""Train a small CNN on Fashion-MNIST in one process, and print how long it took: `python single.py --epochs 2`."""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

DATA = Path(__file__).parents[1] / "data" / "fashion-mnist-8k.npz"


def load(part):
    """The "train" or "test" images, from 0 to 1, with their labels."""
    with np.load(DATA) as arrays:
        images, labels = torch.from_numpy(arrays[f"{part}_images"]), torch.from_numpy(arrays[f"{part}_labels"])
    return TensorDataset(images.float().div(255).unsqueeze(1), labels.long())


def build():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 7 * 7, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


def accuracy(model, device):
    images, labels = load("test").tensors
    model.eval()
    with torch.no_grad():
        return (model(images.to(device)).argmax(dim=1) == labels.to(device)).float().mean().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32)
    args = parser.parse_args()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_loader = DataLoader(load("train"), batch_size=args.batch_size, shuffle=True)
    model = build().to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = optim.SGD(model.parameters(), lr=0.02, momentum=0.9)

    began = time.perf_counter()
    model.train()
    for epoch in range(args.epochs):
        for images, labels in train_loader:
            images, labels = images.to(device), labels.to(device)
            optimizer.zero_grad()
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}  loss {loss.item():.3f}")
    print(f"{args.epochs} epochs took {time.perf_counter() - began:.1f} s")
    print(f"test accuracy {accuracy(model, device):.1%}")


if __name__ == "__main__":
    main()
