"""Work that was due when training broke off after a batch is done when it resumes, and nothing is done twice."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
import torch
from torch import nn

from everstep.pytorch import Batch, Epoch, PyTorchCallback
from lab.one_weight import OneWeight, Weight, fit, reported, trainer


def sigterm_in(batch: int) -> Any:
    return lambda trial, index: os.kill(os.getpid(), signal.SIGTERM) if index == batch else None


@pytest.fixture(autouse=True)
def own_sigterm() -> Any:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


def validated() -> list[int]:
    return [line["batches"] for line in reported("validation")]


def test_a_validation_that_a_preemption_cut_off_is_made_up_for() -> None:
    cut = fit(options={"in_batch": sigterm_in(3)}, validation_period=Batch(4), checkpoint_policy="none")
    assert cut.diary.count("on_validation_end") == 0

    fit(validation_period=Batch(4), checkpoint_policy="none")
    assert validated() == [4, 8]


def test_a_preemption_in_the_last_batch_leaves_the_last_validation_to_the_next_run() -> None:
    fit(options={"in_batch": sigterm_in(7)})
    assert validated() == []

    again = fit()
    assert validated() == [8]
    assert again.batches == []


def test_a_second_trainer_in_the_process_hears_of_a_preemption_too() -> None:
    fit(context={"checkpoints": "first"})
    second = fit(context={"checkpoints": "second"}, options={"in_batch": sigterm_in(3)})
    assert [batch for _, batch, _ in second.batches] == [0, 1, 2, 3]
    assert second.diary.count("on_checkpoint_upload_end") == 1


def test_the_end_of_an_epoch_that_a_preemption_cut_off_is_told_later() -> None:
    cut = fit(options={"in_batch": sigterm_in(7)}, max_length=Epoch(2))
    assert cut.diary.of("on_training_epoch_end") == []

    again = fit(max_length=Epoch(2))
    assert again.diary.of("on_training_epoch_end") == [(0,), (1,)]


def test_who_goes_on_in_the_middle_of_an_epoch_does_not_hear_of_its_start() -> None:
    fit(options={"in_batch": sigterm_in(2)}, max_length=Epoch(2))
    again = fit(max_length=Epoch(2))
    assert again.diary.of("on_training_epoch_start") == [(1,)]


def test_a_validation_that_fails_is_made_up_for() -> None:
    def fail(*_: Any) -> Any:
        raise ValueError("not today")

    with pytest.raises(ValueError, match="not today"):
        fit(options={"evaluate": fail}, validation_period=Batch(4), checkpoint_policy="none")
    fit(validation_period=Batch(4), checkpoint_policy="none")
    assert validated() == [4, 8]


def test_gathered_gradients_survive_a_step_that_breaks_off() -> None:
    together = {"aggregation_frequency": 4}
    undisturbed = fit(context=together, max_length=Batch(8))

    def fail(_: Any) -> None:
        raise ValueError("not finite")

    with pytest.raises(ValueError, match="not finite"):
        fit(context=together | {"checkpoints": "kept"}, options={"clip": fail}, max_length=Batch(8))
    again = fit(context=together | {"checkpoints": "kept"}, max_length=Batch(8))
    assert [batch for _, batch, _ in again.batches] == [3, 4, 5, 6, 7]
    assert again.w == undisturbed.w


def test_a_callback_that_fails_in_on_exception_hides_nothing_and_the_state_is_saved() -> None:
    class Clumsy(PyTorchCallback):
        def on_exception(self, error: BaseException) -> None:
            raise RuntimeError("and this")

    def fail(trial: OneWeight, index: int) -> None:
        if index == 3:
            raise ValueError("the first")

    with pytest.raises(ValueError, match="the first"):
        fit(options={"in_batch": fail, "callbacks": {"clumsy": Clumsy()}})
    assert [batch for _, batch, _ in fit().batches] == [3, 4, 5, 6, 7]


class Counting(Weight):
    """Counts its calls in a buffer, in validation too."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(x)


def test_validation_does_not_change_buffers() -> None:
    class Counted(OneWeight):
        def __init__(self, context: Any, **options: Any) -> None:
            model: nn.Module = context.wrap_model(Counting())
            super().__init__(context, model=model, **options)

    with trainer(Counted) as (trial, made):
        made.fit(max_length=Batch(8), validation_period=Batch(1))
        assert trial.model.calls == 8
