"""A small network learns a few images; waits at gates."""

import torch
from images import load, pass_gate
from torch import nn
from torch.utils.data import DataLoader

from everstep import pytorch


class ImageTrial(pytorch.PyTorchTrial):
    def __init__(self, context):
        self.context = context
        hidden, rate = context.get_hparam("hidden"), context.get_hparam("lr")
        network = nn.Sequential(nn.Linear(28 * 28, hidden), nn.ReLU(), nn.Dropout(0.1), nn.Linear(hidden, 10))
        self.model = context.wrap_model(network)
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=rate, momentum=0.9))

    def build_training_data_loader(self):
        return DataLoader(load("train"), batch_size=self.context.get_per_slot_batch_size(), shuffle=True)

    def build_validation_data_loader(self):
        return DataLoader(load("test"), batch_size=64)

    def train_batch(self, batch, epoch_idx, batch_idx):
        pass_gate(batch_idx)
        images, labels = batch
        loss = nn.functional.cross_entropy(self.model(images), labels)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch):
        images, labels = batch
        return {"validation_loss": nn.functional.cross_entropy(self.model(images), labels)}
