"""A CNN learns Fashion-MNIST as a trial: this file has the model, the data and one batch; the Trainer has the loop.

    python examples/image_trial.py                                    # alone
    torchrun --nproc-per-node 2 examples/image_trial.py               # a fixed world
    everstep run --nproc-per-node 2 examples/image_trial.py           # kill workers as you like

Run it again after Ctrl-C or the loss of all workers, and it resumes from its newest checkpoint, with any number of
workers. A global batch always consists of the same 4 micro-batches, so the final weights are the same, bit for bit."""

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  its usual name
from torch.utils.data import DataLoader, TensorDataset

from everstep import pytorch

DATA = Path(__file__).parent / "data" / "fashion-mnist-8k.npz"


def load(part, num_samples=None):
    """The "train" or "test" images, from 0 to 1, with their labels; all of them, or the first `num_samples`."""
    with np.load(DATA) as arrays:
        images, labels = torch.from_numpy(arrays[f"{part}_images"]), torch.from_numpy(arrays[f"{part}_labels"])
    return TensorDataset(images[:num_samples].float().div(255).unsqueeze(1), labels[:num_samples].long())


class ImageTrial(pytorch.PyTorchTrial):
    def __init__(self, context):
        self.context = context
        width, dropout = context.get_hparam("width"), context.get_hparam("dropout")
        model = nn.Sequential(
            nn.Conv2d(1, width, 3), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Dropout(dropout), nn.Linear(2 * width * 5 * 5, 64), nn.ReLU(), nn.Linear(64, 10),
        )  # fmt: skip
        self.model = context.wrap_model(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=context.get_hparam("learning_rate"), momentum=0.9)
        self.optimizer = context.wrap_optimizer(optimizer)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
        context.wrap_lr_scheduler(scheduler, pytorch.LRScheduler.StepMode.STEP_EVERY_EPOCH)

    def build_training_data_loader(self):
        images = load("train", self.context.get_hparam("samples"))
        return DataLoader(images, batch_size=self.context.get_per_slot_batch_size(), shuffle=True)

    def build_validation_data_loader(self):
        return DataLoader(load("test"), batch_size=250)

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

    def build_callbacks(self):
        return {"patience": pytorch.EarlyStopping(self.context, "validation_loss", patience=3)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--samples", type=int, help="train on this many images only")
    parser.add_argument("--global-batch-size", type=int, default=64, help="samples of all workers, in 4 micro-batches")
    parser.add_argument("--learning-rate", type=float, default=0.05)
    parser.add_argument("--report-every", type=int, default=20, metavar="BATCHES")
    parser.add_argument("--test", action="store_true", help="only one batch, one validation, one checkpoint")
    args = parser.parse_args()

    hparams = {
        "global_batch_size": args.global_batch_size,
        "learning_rate": args.learning_rate,
        "samples": args.samples,
        "width": 16,
        "dropout": 0.1,
    }
    conf = {"searcher": {"metric": "validation_loss", "smaller_is_better": True}}
    with pytorch.init(hparams=hparams, exp_conf=conf, micro_batches=4) as context:
        trainer = pytorch.Trainer(ImageTrial(context), context)
        trainer.fit(
            max_length=pytorch.Epoch(args.epochs),
            validation_period=pytorch.Epoch(1),
            checkpoint_period=pytorch.Batch(2 * args.report_every),
            reporting_period=pytorch.Batch(args.report_every),
            test_mode=args.test,
        )


if __name__ == "__main__":
    main()
