from typing import Any, Dict

import torch
from torch import nn

from everstep import pytorch
from everstep.pytorch import DataLoader, PyTorchTrialContext


class MyPyTorchTrial(pytorch.PyTorchTrial):
    def __init__(self, context: PyTorchTrialContext, hparams: Dict) -> None:
        self.context = context
        self.model = context.wrap_model(nn.Sequential(
            nn.Linear(9216, 128),
        ))
        self.optimizer = context.wrap_optimizer(torch.optim.Adadelta(
            self.model.parameters(), lr=hparams["lr"])
        )

    def train_batch(
            self, batch: pytorch.TorchData, epoch_idx: int, batch_idx: int
    ) -> Dict[str, torch.Tensor]:
        data, labels = batch
        output = self.model(data)
        loss = torch.nn.functional.nll_loss(output, labels)

        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)

        return {"loss": loss}

    def evaluate_batch(self, batch: pytorch.TorchData) -> Dict[str, Any]:
        data, labels = batch
        output = self.model(data)
        validation_loss = torch.nn.functional.nll_loss(output, labels)
        accuracy = (output.argmax(dim=1) == labels).float().mean()
        return {"validation_loss": validation_loss, "accuracy": accuracy}

    def build_training_data_loader(self) -> DataLoader:
        train_set = make_set(384, seed=1)
        return DataLoader(train_set, batch_size=self.context.get_per_slot_batch_size(), shuffle=True)

    def build_validation_data_loader(self) -> DataLoader:
        validation_set = make_set(64, seed=2)
        return DataLoader(validation_set, batch_size=self.context.get_per_slot_batch_size())


def make_set(size, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (size,), generator=generator)
    data = torch.randn(size, 9216, generator=generator) * 0.01
    data[torch.arange(size), labels] += 1
    return torch.utils.data.TensorDataset(data, labels)


MNistTrial = MyPyTorchTrial
