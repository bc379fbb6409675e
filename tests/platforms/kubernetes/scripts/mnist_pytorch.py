"""What seed 001's command starts: records by number from RecordIndexService, trained with PyTorchAllReduceController.

Each batch takes more than a second until there is a file `hurry` in /data, so that a test has time to disturb it."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812  its usual name
from torch import nn
from torch.utils.data import DataLoader, Dataset

from everstep import PyTorchAllReduceController, RecordIndexService

NUM_RECORDS = 24_000

parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, required=True)
parser.add_argument("--num_epochs", type=int, required=True)
parser.add_argument("--training_data", type=Path, required=True)
parser.add_argument("--validation_data", type=Path, required=True)
args = parser.parse_args()


class ElasticDataset(Dataset):
    def __init__(self, data_shard_service):
        self.data_shard_service = data_shard_service

    def __len__(self):
        return sys.maxsize

    def __getitem__(self, index):
        index = self.data_shard_service.fetch_record_index()
        image = torch.full((16,), float(index % 10))
        return image, index % 10


def train_one_batch(model, optimizer, data, target):
    optimizer.zero_grad()
    output = model(data)
    loss = F.nll_loss(output, target)
    loss.backward()
    optimizer.step()
    return loss


if __name__ == "__main__":
    data_shard_service = RecordIndexService(
        batch_size=args.batch_size,
        dataset_size=NUM_RECORDS,
        num_epochs=args.num_epochs,
        shuffle=True,
        dataset_name="mnist_training_data",
    )
    train_loader = DataLoader(ElasticDataset(data_shard_service), batch_size=args.batch_size)
    model = nn.Sequential(nn.Linear(16, 10), nn.LogSoftmax(dim=1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    allreduce_controller = PyTorchAllReduceController(data_shard_service)
    allreduce_controller.set_broadcast_model(model)
    allreduce_controller.set_broadcast_optimizer(optimizer)
    elastic_train_one_batch = allreduce_controller.elastic_run(train_one_batch)
    with allreduce_controller.scope():
        for data, target in train_loader:
            loss = elastic_train_one_batch(model, optimizer, data, target)
            if not Path("/data/hurry").exists():
                time.sleep(1.5)
