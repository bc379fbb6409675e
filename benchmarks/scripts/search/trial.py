"""The same task as an Everstep trial, with the Trainer: validations at the searcher's rungs, a checkpoint at each.

Each trial leaves the time of its first batch in the folder that the hyperparameter `marks` names."""

from __future__ import annotations

import time
from pathlib import Path

import task
import torch
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

import everstep
from everstep import pytorch


class Clothes(Dataset):
    """Read a batch at a time, as the peers read them."""

    def __init__(self, part):
        self.images, self.labels = task.images(part)

    def __len__(self):
        return len(self.images)

    def __getitems__(self, indices):
        return self.images[indices], self.labels[indices]


class ClothesTrial(pytorch.PyTorchTrial):
    def __init__(self, context):
        self.context = context
        self.model = context.wrap_model(task.build(context.get_hparam("hidden")))
        rate, momentum = context.get_hparam("learning_rate"), context.get_hparam("momentum")
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=rate, momentum=momentum))
        self._mark = Path(context.get_hparam("marks")) / str(everstep.get_cluster_info().trial.trial_id)

    def build_training_data_loader(self):
        return DataLoader(Clothes("train"), batch_size=task.BATCH_SIZE, shuffle=True, collate_fn=tuple)

    def build_validation_data_loader(self):
        return DataLoader(Clothes("test"), batch_size=1000, collate_fn=tuple)

    def train_batch(self, batch, epoch_idx, batch_idx):
        if batch_idx == 0 and not self._mark.exists():
            self._mark.write_text(str(time.time()))
        images, labels = batch
        loss = functional.cross_entropy(self.model(images), labels)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {}

    def evaluate_batch(self, batch, batch_idx):
        images, labels = batch
        return {"loss": functional.cross_entropy(self.model(images), labels)}


def main():
    with pytorch.init(hparams=everstep.get_cluster_info().trial.hparams) as context:
        pytorch.Trainer(ClothesTrial(context), context).fit()


if __name__ == "__main__":
    main()
