"""Records by lease: a dataset asks for the next image; if a peer dies, the function for a batch runs again.

    python examples/image_controller.py                               # alone
    everstep run --nproc-per-node 3 examples/image_controller.py      # kill workers as you like

Fast workers take more records than slow ones, and each record is trained on exactly once per epoch, even when workers
die. Scripts written for ElasticDL have this shape; they run after changing their imports."""

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from everstep import AllReduceController, RecordIndexService

DATA = Path(__file__).parent / "data" / "fashion-mnist-8k.npz"


def load(part):
    """The "train" or "test" images, from 0 to 1, with their labels."""
    with np.load(DATA) as arrays:
        pixels, labels = arrays[f"{part}_images"], arrays[f"{part}_labels"]
    return TensorDataset(torch.from_numpy(pixels).div(255).unsqueeze(1), torch.from_numpy(labels).long())


class Leased(Dataset):
    """The samples of another dataset, in the order in which the coordinator leases them."""

    def __init__(self, dataset, records):
        self.dataset, self.records = dataset, records

    def __len__(self):
        return sys.maxsize  # the number of this worker's samples is known only at the end

    def __getitem__(self, _):
        return self.dataset[self.records.fetch_record_index()]


def build():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 5 * 5, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


def learn(net, sgd, images, labels):
    """One batch: this part is retried."""
    sgd.zero_grad()
    error = nn.functional.cross_entropy(net(images), labels)
    error.backward()
    sgd.step()
    return error.item()


@torch.no_grad()
def accuracy(net):
    images, labels = load("test").tensors
    return (net.eval()(images).argmax(dim=1) == labels).float().mean().item()


def main(options):
    images = load("train")
    records = RecordIndexService(
        options.batch_size, options.num_epochs, len(images), shuffle=True, dataset_name="fashion"
    )
    loader = DataLoader(Leased(images, records), options.batch_size, num_workers=options.num_workers)
    net = build()
    sgd = torch.optim.SGD(net.parameters(), lr=options.learning_rate, momentum=0.9)

    controller = AllReduceController(records)
    controller.set_broadcast_model(net)
    controller.set_broadcast_optimizer(sgd)
    elastic_learn = controller.elastic_run(learn)
    with controller.scope():
        for number, batch in enumerate(loader):
            error = elastic_learn(net, sgd, *batch)
            if number % 20 == 0 and controller.rank == 0:
                print(f"epoch {controller.current_epoch}  step {controller.num_steps:3}  loss {error:.4f}", flush=True)
        is_first = controller.rank == 0  # later, workers leave one by one and ranks change

    if is_first:
        print(f"test accuracy {accuracy(net):.1%}", flush=True)


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--batch_size", type=int, default=50, help="samples per worker; 50 divides the 7,000 images")
    options.add_argument("--num_epochs", type=int, default=2)
    options.add_argument("--learning_rate", type=float, default=0.05)
    options.add_argument("--num_workers", type=int, default=0, help="processes that read images, per worker")
    main(options.parse_args())
