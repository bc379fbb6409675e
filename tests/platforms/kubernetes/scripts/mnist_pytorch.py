"""What seed 001's command starts, under the name that it gives: numbers by lease, and which of ten kinds each one is.

Each batch takes more than a second until there is a file `hurry` in /data, so that a test has time to disturb it."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

from everstep import AllReduceController, RecordIndexService

NUM_RECORDS, KINDS = 24_000, 10


class Numbers(Dataset):
    def __init__(self, leases):
        self.leases = leases

    def __len__(self):
        return sys.maxsize

    def __getitem__(self, _):
        kind = self.leases.fetch_record_index() % KINDS
        return torch.full((16,), float(kind)), kind


def learn(net, sgd, numbers, kinds):
    sgd.zero_grad()
    torch.nn.functional.cross_entropy(net(numbers), kinds).backward()
    sgd.step()


def main(options):
    leases = RecordIndexService(
        options.batch_size, options.num_epochs, NUM_RECORDS, shuffle=True, dataset_name="numbers"
    )
    net = torch.nn.Linear(16, KINDS)
    sgd = torch.optim.SGD(net.parameters(), lr=0.01)
    controller = AllReduceController(leases)
    controller.set_broadcast_model(net)
    controller.set_broadcast_optimizer(sgd)
    elastic_learn = controller.elastic_run(learn)
    with controller.scope():
        for batch in DataLoader(Numbers(leases), options.batch_size):
            elastic_learn(net, sgd, *batch)
            if not Path("/data/hurry").exists():
                time.sleep(1.5)


if __name__ == "__main__":
    options = argparse.ArgumentParser()
    for option, kind in {"batch_size": int, "num_epochs": int, "training_data": Path, "validation_data": Path}.items():
        options.add_argument(f"--{option}", type=kind, required=True)
    main(options.parse_args())
