"""Door 2: a trial and its Trainer."""

from __future__ import annotations

import logging
import os
from argparse import Namespace
from typing import Any

from task import (
    BATCH,
    MICRO_BATCHES,
    SAVE_EVERY,
    STEPS_PER_EPOCH,
    Net,
    Records,
    arguments,
    checkpoints,
    clip,
    dawdle,
    optimizers,
    tell,
    tell_result,
    tell_step,
)
from torch.optim.lr_scheduler import ExponentialLR
from torch.utils import data

from everstep import pytorch
from everstep.pytorch import Batch, LRScheduler


class Telling(pytorch.PyTorchCallback):
    def __init__(self, trial: Trial) -> None:
        self.trial = trial

    def on_training_batch_end(self, epoch_idx: int, batch_idx: int, metrics: dict[str, Any]) -> None:
        tell_step(self.trial.net, batch_idx + 1, self.trial.args.epochs)
        dawdle()


class Trial(pytorch.PyTorchTrial):
    def __init__(self, context: pytorch.PyTorchTrialContext, args: Namespace) -> None:
        self.context, self.args = context, args
        self.net = Net()
        context.wrap_model(self.net)
        self.learning, self.counting = (context.wrap_optimizer(each) for each in optimizers(self.net))
        context.wrap_lr_scheduler(ExponentialLR(self.learning, 0.995), LRScheduler.StepMode.STEP_EVERY_OPTIMIZER_STEP)

    def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
        return {"telling": Telling(self)}

    def build_training_data_loader(self) -> Any:
        workers = self.args.loaders
        return pytorch.DataLoader(Records(), batch_size=BATCH, shuffle=True, num_workers=workers, seed=self.args.seed)

    def build_validation_data_loader(self) -> Any:
        return data.DataLoader(Records(), batch_size=32)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        inputs, targets, indices = batch
        dawdle()
        loss = self.net.loss(self.net(inputs, indices), targets)
        dawdle()
        self.context.backward(loss)
        dawdle()
        self.context.step_optimizer(self.learning, clip_grads=clip)
        self.context.step_optimizer(self.counting)
        return {"loss": loss}

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        inputs, targets, indices = batch
        return {"loss": self.net.loss(self.net(inputs, indices), targets)}


def main() -> None:
    args = arguments()
    logging.basicConfig(level=logging.INFO, format="%(relativeCreated)d %(message)s")
    tell("started")
    os.chdir(checkpoints().parent)
    os.environ["EVERSTEP_HOME"] = str(checkpoints().parent / "home")
    with pytorch.init(
        micro_batches=MICRO_BATCHES,
        reduce=args.reduce,
        seed=args.seed,
        checkpoints=checkpoints(),
        enable_tensorboard_logging=False,
    ) as context:
        trial = Trial(context, args)
        pytorch.Trainer(trial, context).fit(
            max_length=Batch(args.epochs * STEPS_PER_EPOCH),
            validation_period=Batch(50),
            checkpoint_period=Batch(SAVE_EVERY),
            reporting_period=Batch(10),
            checkpoint_policy="none",
        )
        tell_result(trial.net, context.engine.step, args.epochs)


if __name__ == "__main__":
    main()
