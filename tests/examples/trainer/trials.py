"""A trial that tells ten kinds of spikes apart."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

from everstep import pytorch

KINDS, LENGTH = 10, 64


class Spikes(pytorch.PyTorchTrial):
    def __init__(self, context, lr):
        self.context = context
        self.net = context.wrap_model(nn.Linear(LENGTH, KINDS))
        self.sgd = context.wrap_optimizer(torch.optim.SGD(self.net.parameters(), lr=lr))

    def _error(self, batch):
        spikes, kinds = batch
        return nn.functional.cross_entropy(self.net(spikes), kinds)

    def train_batch(self, batch, epoch_idx, batch_idx):
        error = self._error(batch)
        self.context.backward(error)
        self.context.step_optimizer(self.sgd)
        return {"error": error}

    def evaluate_batch(self, batch):
        return {"validation_loss": self._error(batch)}

    def _loader(self, size, seed):
        draw = torch.Generator().manual_seed(seed)
        kinds = torch.randint(KINDS, (size,), generator=draw)
        spikes = torch.randn(size, LENGTH, generator=draw) / 10
        spikes[torch.arange(size), kinds] += 1
        return pytorch.DataLoader(TensorDataset(spikes, kinds), batch_size=self.context.get_per_slot_batch_size())

    def build_training_data_loader(self):
        return self._loader(384, seed=1)

    def build_validation_data_loader(self):
        return self._loader(64, seed=2)
