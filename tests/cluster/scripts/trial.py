"""A trial with everything that could spoil it: shuffled data, dropout, batch norm, gathered gradients, a scheduler, a
callback with state, reducers, validations, checkpoints. Tells the weights after each batch and all that is reported.

Gates by number: a batch in train_batch, 1000 + batches in evaluate_batch, 2000 + batches in on_validation_end, 3000 +
batches in on_checkpoint_save_start. With --gate-worker they hold that worker alone. Works where its events are."""

from __future__ import annotations

import argparse
import logging
import os
import signal
from pathlib import Path
from typing import Any

import torch
from gates import pass_first_time, pass_gate
from pauses import pause
from torch import Tensor, nn
from torch.optim.lr_scheduler import ExponentialLR
from torch.utils import data
from train import build, digest, optimizer_state

import everstep
from everstep import pytorch
from everstep.events import emit
from everstep.pytorch import Batch, LRScheduler, Reducer

AVG, MAX = Reducer.AVG, Reducer.MAX


class Samples(data.Dataset):
    def __init__(self, size: int) -> None:
        self.inputs = torch.randn(size, 16, generator=torch.Generator().manual_seed(3))

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, int, int]:
        return self.inputs[index] + 0.01 * torch.rand(16), int(self.inputs[index, :4].argmax()), index


class Remembering(pytorch.PyTorchCallback):
    """Tells what it hears, and keeps a sum of it."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.state: dict[str, float] = {"training": 0.0, "validation": 0.0, "batches": 0.0, "epochs": 0.0}

    def on_training_epoch_start(self, epoch_idx: int) -> None:
        self._scale_lr(0.99)

    def on_training_batch_start(self, epoch_idx: int, batch_idx: int) -> None:
        self._scale_lr(0.999)

    def _scale_lr(self, factor: float) -> None:
        """Who hears twice of a start, or not at all, has other weights from there on."""
        for group in self.trial.optimizer.param_groups:
            group["lr"] *= factor

    def on_training_batch_end(self, epoch_idx: int, batch_idx: int, metrics: dict[str, Any]) -> None:
        self.state["batches"] += 1
        emit("weights", step=batch_idx + 1, digest=self.trial.digest[:16])

    def on_training_epoch_end(self, epoch_idx: int) -> None:
        self.state["epochs"] += 1

    def on_training_workload_end(self, avg_metrics: dict[str, Any], batch_metrics: list[dict[str, Any]]) -> None:
        batches = self.trial.context.current_train_batch()
        self.state["training"] += len(batch_metrics)
        emit("report", step=batches, average=avg_metrics, batches=batch_metrics, lr=self.trial.lr)

    def on_validation_end(self, metrics: dict[str, Any]) -> None:
        batches = self.trial.context.current_train_batch()
        self.trial.pass_gate(2000 + batches)
        self.state["validation"] += metrics["loss"]
        emit("validation", step=batches, metrics=metrics, state=self.state["validation"])

    def on_checkpoint_save_start(self, checkpoint: dict[str, Any]) -> None:
        self.trial.pass_gate(3000 + self.trial.context.current_train_batch())

    def on_checkpoint_upload_end(self, uuid: str) -> None:
        emit("uploaded", uuid=uuid)

    def state_dict(self) -> dict[str, Any]:
        return dict(self.state)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.state = dict(state_dict)


class Trial(pytorch.PyTorchTrial):
    def __init__(self, context: pytorch.PyTorchTrialContext, args: argparse.Namespace) -> None:
        self.context, self.args = context, args
        self.model = context.wrap_model(build(16))
        self.optimizer = context.wrap_optimizer(torch.optim.Adam(self.model.parameters(), lr=1e-2))
        self.scheduler = context.wrap_lr_scheduler(
            ExponentialLR(self.optimizer, 0.9), LRScheduler.StepMode.STEP_EVERY_OPTIMIZER_STEP
        )
        self.order = context.wrap_reducer(_in_order, "order")
        self.loss_fn = nn.CrossEntropyLoss()

    @property
    def digest(self) -> str:
        return digest(self.model.state_dict(), optimizer_state(self.optimizer))

    @property
    def lr(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"])

    def pass_gate(self, number: int) -> None:
        worker = os.environ.get("EVERSTEP_WORKER")
        is_rehearsing = self.context.engine.regrouping.is_rehearsing
        if worker is not None and self.args.gate_worker in (None, worker) and not is_rehearsing:
            pass_gate(number)

    def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
        return {"remembering": Remembering(self)}

    def build_training_data_loader(self) -> data.DataLoader[Any]:
        return pytorch.DataLoader(Samples(self.args.samples), batch_size=4, shuffle=True, seed=11)

    def build_validation_data_loader(self) -> data.DataLoader[Any]:
        return data.DataLoader(Samples(21), batch_size=4)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        inputs, targets, indices = batch
        pass_first_time()
        self.pass_gate(batch_idx)
        if f"{os.environ.get('EVERSTEP_WORKER')}@{batch_idx}" == self.args.stop:
            self.context.set_stop_requested(True)
        if f"{os.environ.get('EVERSTEP_WORKER')}@{batch_idx}" == self.args.fail:
            raise ZeroDivisionError
        if batch_idx == self.args.invalid:
            raise everstep.InvalidHP("the loss is no number")
        loss = self.loss_fn(self.model(inputs), targets)
        emit("micro_batch", step=batch_idx)
        pause()
        for index in indices.tolist():
            self.order.update(index)  # type: ignore[attr-defined]
        self.context.backward(loss)
        self.context.step_optimizer(
            self.optimizer, clip_grads=lambda parameters: nn.utils.clip_grad_norm_(parameters, 1.0)
        )
        return {"loss": loss, "noise": torch.rand(())}

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        inputs, targets, indices = batch
        self.pass_gate(1000 + self.context.current_train_batch())
        for index in indices.tolist():
            self.order.update(index)  # type: ignore[attr-defined]
        emit("evaluated", step=self.context.current_train_batch(), batch=batch_idx)
        return {"loss": self.loss_fn(self.model(inputs), targets), "last": indices.max(), "noise": torch.rand(())}

    def evaluation_reducer(self) -> dict[str, Reducer]:
        return {"loss": AVG, "last": MAX, "noise": AVG}


def _in_order(indices: list[int]) -> int:
    """A number that another order would change."""
    found = 7
    for index in indices:
        found = (found * 31 + index) % 1_000_003
    return found


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=103)
    parser.add_argument("--micro-batches", type=int, default=6)
    parser.add_argument("--batches", type=int, default=12)
    parser.add_argument("--aggregation", type=int, default=2)
    parser.add_argument("--folder", help="of checkpoints")
    parser.add_argument("--gate-worker")
    parser.add_argument("--stop", help="WORKER@BATCH: who asks for a stop, and when")
    parser.add_argument("--fail", help="WORKER@BATCH: whose train_batch raises, and when")
    parser.add_argument("--invalid", type=int, help="BATCH: whose train_batch raises InvalidHP")
    parser.add_argument("--die-at-fsync", type=int, help="kill -9 at the so-manieth one")
    return parser.parse_args()


def die_at_fsync(number: int) -> None:
    fsync, left = os.fsync, number

    def deadly(descriptor: int) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        fsync(descriptor)

    os.fsync = deadly


def main() -> None:
    args = arguments()
    logging.basicConfig(level=logging.INFO, format="%(relativeCreated)d %(message)s")
    here = Path(os.environ["EVERSTEP_EVENTS"]).parent
    os.chdir(here)
    os.environ["EVERSTEP_HOME"] = str(here / "home")
    if args.die_at_fsync:
        die_at_fsync(args.die_at_fsync)
    with pytorch.init(
        micro_batches=args.micro_batches, aggregation_frequency=args.aggregation, seed=7, checkpoints=args.folder,
        enable_tensorboard_logging=False,
    ) as context:  # fmt: skip
        trial = Trial(context, args)
        pytorch.Trainer(trial, context).fit(
            max_length=Batch(args.batches),
            validation_period=Batch(4),
            checkpoint_period=Batch(5),
            reporting_period=Batch(3),
            checkpoint_policy="none",
        )
        emit("result", weights_digest=trial.digest, lr=trial.lr, steps=context.engine.step)


if __name__ == "__main__":
    main()
