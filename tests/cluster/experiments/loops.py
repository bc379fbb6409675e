"""Trials by a loop of the script's own: native, or with the controller. They report after every third batch."""

import sys

import torch
from images import load
from torch import nn
from torch.utils.data import DataLoader, Dataset

import everstep


def main(way):
    hparams = everstep.get_hparams()
    torch.manual_seed(everstep.get_cluster_info().trial.trial_seed)
    model = nn.Linear(28 * 28, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=hparams["lr"])
    {"native": native, "controller": controller}[way](model, optimizer)


def goes_on(model, step):
    images, labels = load("test").tensors
    with torch.no_grad():
        loss = nn.functional.cross_entropy(model(images), labels)
    return everstep.report({"validation_loss": float(loss)}, step=step)


def learn(model, optimizer, batch):
    images, labels = batch
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(images), labels).backward()
    optimizer.step()


def native(model, optimizer):
    loader = DataLoader(load("train"), batch_size=8, shuffle=True)
    trainer = everstep.ElasticTrainer(model, loader, micro_batches=2, seed=7)
    optimizer = trainer.prepare(optimizer)
    for _epoch in trainer.epochs(1):
        for batch in loader:
            with trainer.step():
                learn(model, optimizer, batch)
            if trainer.num_steps % 3 == 0 and not goes_on(model, trainer.num_steps):
                return


class Leased(Dataset):
    def __init__(self, service):
        self.service, self.data = service, load("train")

    def __len__(self):
        return 1 << 40

    def __getitem__(self, _):
        return self.data[self.service.fetch_record_index()]


def controller(model, optimizer):
    service = everstep.RecordIndexService(batch_size=8, dataset_size=256, num_epochs=1, shuffle=True)
    ours = everstep.AllReduceController(service)
    ours.set_broadcast_model(model)
    ours.set_broadcast_optimizer(optimizer)

    @ours.elastic_run
    def train(batch):
        learn(model, optimizer, batch)

    with ours.scope():
        before = 0
        for batch in DataLoader(Leased(service), batch_size=8):
            train(batch)
            if ours.num_steps % 3 == 0 and ours.num_steps > before:
                before = ours.num_steps
                if not goes_on(model, before):
                    return


if __name__ == "__main__":
    main(sys.argv[1])
