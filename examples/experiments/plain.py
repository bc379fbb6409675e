"""A plain script: it does not import Everstep, takes its hyperparameters as arguments, and prints its results."""

import argparse

import torch
from images import build, load
from torch.nn import functional as F  # noqa: N812  its usual name


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--batches", type=int, default=32)
    args = parser.parse_args()

    torch.manual_seed(0)
    images, labels = load("train").tensors
    test_images, test_labels = load("test").tensors
    model = build(args.hidden)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    for batch in range(1, args.batches + 1):
        picked = torch.randint(len(images), (32,))
        optimizer.zero_grad()
        F.cross_entropy(model(images[picked]), labels[picked]).backward()
        optimizer.step()
        if batch % 8 == 0:
            with torch.no_grad():
                loss = F.cross_entropy(model(test_images), test_labels)
            print(f"batch {batch}: validation_loss={loss:.4f}", flush=True)


if __name__ == "__main__":
    main()
