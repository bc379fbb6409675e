"""Learning rates, batch by batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import ExponentialLR, LambdaLR, ReduceLROnPlateau

from everstep.errors import UsageError
from everstep.pytorch import Batch, LRScheduler, PyTorchCallback
from lab.one_weight import OneWeight, fit
from lab.refused import refused

Mode = LRScheduler.StepMode


class Scheduled(OneWeight):
    """The rate is halved with each step of the scheduler."""

    def __init__(self, context: Any, mode: Any, frequency: Any = 1, make: Any = None, **options: Any) -> None:
        super().__init__(context, lr=1 / 4, **options)
        made = make(self.optimizer) if make else ExponentialLR(self.optimizer, gamma=0.5)
        self.scheduler = context.wrap_lr_scheduler(made, mode, frequency)
        assert self.scheduler is made


def rates(mode: Any, frequency: int = 1, batches: int = 16, **context: Any) -> list[int]:
    """How often it was stepped before each batch."""
    trial = fit(
        Scheduled, options={"mode": mode, "frequency": frequency, "size": 8}, context=context, max_length=Batch(batches)
    )
    return [round(-torch.log2(torch.tensor(4 * lr)).item()) for lr in trial.lrs]


def test_with_every_batch() -> None:
    assert rates(Mode.STEP_EVERY_BATCH) == list(range(16))


def test_with_every_third_batch() -> None:
    assert rates(Mode.STEP_EVERY_BATCH, 3) == [n // 3 for n in range(16)]


def test_with_every_epoch() -> None:
    assert rates(Mode.STEP_EVERY_EPOCH) == [n // 4 for n in range(16)]  # 4 batches each


def test_with_every_second_epoch() -> None:
    assert rates(Mode.STEP_EVERY_EPOCH, 2) == [n // 8 for n in range(16)]


def test_with_every_batch_whatever_the_micro_batches() -> None:
    assert rates(Mode.STEP_EVERY_BATCH, micro_batches=4) == list(range(16))


def test_by_hand_alone() -> None:
    assert rates(Mode.MANUAL_STEP) == [0] * 16


def test_with_every_optimizer_step_and_frequency_counts_those() -> None:
    assert rates(Mode.STEP_EVERY_OPTIMIZER_STEP, aggregation_frequency=2) == [n // 2 for n in range(16)]
    assert rates(Mode.STEP_EVERY_OPTIMIZER_STEP, 2, aggregation_frequency=4, checkpoints="b") == [
        n // 8 for n in range(16)
    ]


def test_never_after_a_batch_without_an_optimizer_step() -> None:
    assert rates(Mode.STEP_EVERY_BATCH, aggregation_frequency=4) == [n // 4 for n in range(16)]
    assert rates(Mode.STEP_EVERY_BATCH, 6, aggregation_frequency=4, checkpoints="b") == [
        0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2,
    ]  # fmt: skip


def test_the_weights_follow_the_rates() -> None:
    trial = fit(Scheduled, options={"mode": Mode.STEP_EVERY_BATCH})

    w = 1.0
    for n in range(8):
        assert trial.weights[n] == pytest.approx(w)
        w -= 0.25 * 0.5**n * 2 * w


def test_a_plateau_is_seen_by_a_callback() -> None:
    class OnPlateau(PyTorchCallback):
        scheduler: Any = None

        def on_validation_end(self, metrics: dict[str, Any]) -> None:
            self.scheduler.step(metrics["constant"])

    class Plateau(Scheduled):
        def __init__(self, context: Any, watcher: OnPlateau, **options: Any) -> None:
            super().__init__(context, callbacks={"plateau": watcher}, **options)
            watcher.scheduler = self.scheduler

    options = {
        "mode": Mode.MANUAL_STEP,
        "make": lambda optimizer: ReduceLROnPlateau(optimizer, factor=0.5, patience=0),
        "watcher": OnPlateau(),
        "evaluate": lambda *_: {"constant": 1.0},
    }
    trial = fit(Plateau, options=options, validation_period=Batch(2))
    assert trial.lrs == [1 / 4] * 4 + [1 / 8] * 2 + [1 / 16] * 2  # the first validation is the best


def test_a_plateau_needs_to_be_stepped_by_hand() -> None:
    with pytest.raises(UsageError, match="(?s)ReduceLROnPlateau with STEP_EVERY_EPOCH.*MANUAL_STEP"):
        fit(Scheduled, options={"mode": Mode.STEP_EVERY_EPOCH, "make": ReduceLROnPlateau})


@pytest.mark.parametrize("mode", ["STEP_EVERY_BATCH", "every batch", 2, None])
def test_an_unknown_step_mode_is_an_error_that_lists_the_valid_ones(mode: Any) -> None:
    with refused("step-mode-unknown", UsageError):
        fit(Scheduled, options={"mode": mode})


@pytest.mark.parametrize("frequency", [0, -1, True, 1.5, None])
def test_a_frequency_is_a_whole_number_of_one_or_more(frequency: Any) -> None:
    with refused("scheduler-frequency-not-positive", UsageError):
        fit(Scheduled, options={"mode": Mode.STEP_EVERY_BATCH, "frequency": frequency})


def test_a_scheduler_stepped_in_train_batch_acts_once_per_batch() -> None:
    class ByHand(Scheduled):
        def update(self, loss: Any) -> None:
            super().update(loss)
            self.scheduler.step()

    trial = fit(ByHand, options={"mode": Mode.MANUAL_STEP}, context={"micro_batches": 4})
    assert trial.lrs == [0.25 * 0.5**n for n in range(8)]


def test_two_schedulers_of_one_optimizer_are_stepped_each_in_its_mode() -> None:
    class Two(Scheduled):
        def __init__(self, context: Any, **options: Any) -> None:
            super().__init__(context, mode=Mode.STEP_EVERY_BATCH, **options)
            self.other = context.wrap_lr_scheduler(ExponentialLR(self.optimizer, gamma=0.25), Mode.STEP_EVERY_EPOCH)

    trial = fit(Two, options={"size": 8})
    assert trial.lrs == [0.25 * 0.5**n * 0.25 ** (n // 4) for n in range(8)]


def test_a_scheduler_goes_on_from_a_checkpoint() -> None:
    options = {"mode": Mode.STEP_EVERY_BATCH, "make": lambda optimizer: LambdaLR(optimizer, lambda n: 1 / (1 + n))}
    straight = fit(Scheduled, options=options, context={"checkpoints": "straight"})
    for length in (3, 8):
        trial = fit(Scheduled, options=options, context={"checkpoints": "halves"}, max_length=Batch(length))

    assert trial.lrs == straight.lrs[3:]
    assert trial.weights == straight.weights[3:]
    assert trial.w == straight.w
