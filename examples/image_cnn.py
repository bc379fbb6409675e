"""A CNN learns Fashion-MNIST on workers that come and go, and saves a checkpoint inside the loop.

    python examples/image_cnn.py                                      # alone
    torchrun --nproc-per-node 2 examples/image_cnn.py                 # a fixed world
    everstep run --nproc-per-node 2 examples/image_cnn.py             # kill workers as you like

With `--resume`, each of them resumes from the checkpoint, in the middle of an epoch and with any number of workers. A
global batch always consists of the same 4 micro-batches, so the final weights are the same, bit for bit."""

import argparse
import os
from pathlib import Path

import numpy as np
import torch
from torch import nn, optim
from torch.nn import functional as F  # noqa: N812  its usual name
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset

from everstep import DistributedDataParallel, ElasticDistributedSampler, ElasticTrainer

DATA = Path(__file__).parent / "data" / "fashion-mnist-8k.npz"


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3)
        self.conv2 = nn.Conv2d(16, 32, 3)
        self.fc1 = nn.Linear(32 * 5 * 5, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.fc1(torch.flatten(x, 1)))
        return F.log_softmax(self.fc2(x), dim=1)


def load(part, num_samples=None):
    """The "train" or "test" images, from 0 to 1, with their labels; all of them, or the first `num_samples`."""
    with np.load(DATA) as arrays:
        images, labels = torch.from_numpy(arrays[f"{part}_images"]), torch.from_numpy(arrays[f"{part}_labels"])
    return TensorDataset(images[:num_samples].float().div(255).unsqueeze(1), labels[:num_samples].long())


def save_checkpoint(path, parts):
    """Write a new file, then rename it: a reader always finds a whole checkpoint."""
    new = path.with_suffix(".new")
    torch.save({name: part.state_dict() for name, part in parts.items()}, new)
    new.replace(path)


def load_checkpoint(path, parts, device):
    for name, state in torch.load(path, map_location=device).items():
        parts[name].load_state_dict(state)


def validate(model, device):
    model.eval()
    correct = 0
    with torch.no_grad():
        for data, target in DataLoader(load("test"), batch_size=250):
            correct += (model(data.to(device)).argmax(dim=1) == target.to(device)).sum().item()
    return correct / len(load("test"))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--samples", type=int, help="train on this many images only")
    parser.add_argument("--batch-size", type=int, default=16, help="samples per micro-batch; a global batch has 4")
    parser.add_argument("--learning-rate", type=float, default=0.05)
    parser.add_argument("--checkpoint", type=Path, default=Path("model.pt"))
    parser.add_argument("--save-every", type=int, default=20, metavar="STEPS")
    parser.add_argument("--resume", action="store_true", help="resume from the checkpoint, if it exists")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device(f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if torch.cuda.is_available() else "cpu")
    train_data = load("train", args.samples)
    train_loader = DataLoader(train_data, args.batch_size, sampler=ElasticDistributedSampler(train_data))
    model = DistributedDataParallel(Net().to(device))
    trainer = ElasticTrainer(model, train_loader, micro_batches=4)
    optimizer = optim.SGD(model.parameters(), lr=args.learning_rate, momentum=0.9)
    scheduler = StepLR(optimizer, step_size=len(train_loader), gamma=0.5)
    optimizer, scheduler = trainer.prepare(optimizer, scheduler)

    # The trainer's state: the number of steps and of micro-batches, and the sampler's position.
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "trainer": trainer}
    if args.resume and args.checkpoint.exists():
        load_checkpoint(args.checkpoint, parts, device)
        print(f"resuming after step {trainer.num_steps}", flush=True)

    for epoch in trainer.epochs(args.epochs):
        model.train()
        for data, target in train_loader:
            with trainer.step():
                data, target = data.to(device), target.to(device)
                loss = F.nll_loss(model(data), target)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                scheduler.step()
                if trainer.num_steps % args.save_every == 0 and trainer.is_last_micro_batch and trainer.rank == 0:
                    save_checkpoint(args.checkpoint, parts)
                    print(f"epoch {epoch}  step {trainer.num_steps:3}  loss {loss.item():.4f}", flush=True)

    if trainer.rank == 0:
        save_checkpoint(args.checkpoint, parts)
        print(f"validation accuracy {validate(model, device):.1%}")


if __name__ == "__main__":
    main()
