"""A CNN learns Fashion-MNIST, keeps a checkpoint, and goes on from it: `python examples/image_cnn.py --resume`.

SGD, a learning rate that halves after each epoch, and the accuracy on images that it has not seen at the end. The order
of the samples depends on the epoch alone: a run that was resumed ends with the weights of one that was not."""

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import nn, optim
from torch.nn import functional as F  # noqa: N812  its usual name
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset

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


def load(part):
    """The "train" or "test" images, from 0 to 1, with their labels."""
    with np.load(DATA) as arrays:
        images, labels = torch.from_numpy(arrays[f"{part}_images"]), torch.from_numpy(arrays[f"{part}_labels"])
    return TensorDataset(images.float().div(255).unsqueeze(1), labels.long())


def save_checkpoint(path, **parts):
    """Aside, then renamed: whoever reads it finds a whole one."""
    aside = path.with_suffix(".new")
    torch.save(parts, aside)
    aside.replace(path)


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
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=0.03)
    parser.add_argument("--checkpoint", type=Path, default=Path("model.pt"), help="written after each epoch")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint, if there is one")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    order = torch.Generator()
    train_loader = DataLoader(load("train"), batch_size=args.batch_size, shuffle=True, generator=order)
    model = Net().to(device)
    optimizer = optim.SGD(model.parameters(), lr=args.learning_rate, momentum=0.9)
    scheduler = StepLR(optimizer, step_size=len(train_loader), gamma=0.5)

    first_epoch = 0
    if args.resume and args.checkpoint.exists():
        checkpoint = torch.load(args.checkpoint, map_location=device)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scheduler.load_state_dict(checkpoint["scheduler"])
        first_epoch = checkpoint["epoch"]
        print(f"goes on with epoch {first_epoch}")

    for epoch in range(first_epoch, args.epochs):
        order.manual_seed(epoch)
        model.train()
        for data, target in train_loader:
            data, target = data.to(device), target.to(device)
            loss = F.nll_loss(model(data), target)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
        print(f"epoch {epoch}  loss {loss.item():.4f}", flush=True)
        save_checkpoint(
            args.checkpoint,
            model=model.state_dict(),
            optimizer=optimizer.state_dict(),
            scheduler=scheduler.state_dict(),
            epoch=epoch + 1,
        )

    print(f"validation accuracy {validate(model, device):.1%}")


if __name__ == "__main__":
    main()
