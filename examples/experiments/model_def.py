"""A trial of the experiments in this folder: a small network learns Fashion-MNIST. `entrypoint: model_def:ImageTrial`
trains it without a script; train.py is that script, for those who want one."""

import torch
from images import build, load
from torch.nn import functional as F  # noqa: N812  its usual name
from torch.utils.data import DataLoader

from everstep import pytorch


class ImageTrial(pytorch.PyTorchTrial):
    def __init__(self, context):
        self.context = context
        self.model = context.wrap_model(build(context.get_hparam("hidden")))
        rate, momentum = context.get_hparam("learning_rate"), context.get_hparam("momentum")
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=rate, momentum=momentum))

    def build_training_data_loader(self):
        return DataLoader(load("train"), batch_size=self.context.get_per_slot_batch_size(), shuffle=True)

    def build_validation_data_loader(self):
        return DataLoader(load("test"), batch_size=500)

    def train_batch(self, batch, epoch_idx, batch_idx):
        images, labels = batch
        loss = F.cross_entropy(self.model(images), labels)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch, batch_idx):
        images, labels = batch
        output = self.model(images)
        accuracy = (output.argmax(dim=1) == labels).float().mean()
        return {"validation_loss": F.cross_entropy(output, labels), "accuracy": accuracy}
