"""Gradient scaling: the factor grows and shrinks as torch's does, once per optimizer step, and is part of the state."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.amp import GradScaler

from everstep.errors import StateMismatch, UsageError
from everstep.pytorch import Batch
from lab.one_weight import OneWeight, fit
from lab.refused import refused

FIRST = 2.0**4


class Scaled(OneWeight):
    """A scaler by hand; overflows in some batches."""

    def __init__(self, context: Any, overflows: tuple[int, ...] = (), **options: Any) -> None:
        super().__init__(context, **options)
        self.overflows = overflows
        self.scaler = self.make_scaler()
        self.scales: list[float] = []

    def make_scaler(self) -> GradScaler:
        return self.context.wrap_scaler(GradScaler("cpu", init_scale=FIRST, growth_interval=3))

    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        loss = super().loss(batch)
        is_training = self.model.training
        if is_training and self.context.current_train_batch() in self.overflows:
            loss = loss * float("inf")
        return loss

    def update(self, loss: Tensor) -> None:
        self.scales.append(self.scaler.get_scale())
        self.context.backward(self.scaler.scale(loss))
        self.context.step_optimizer(self.optimizer, scaler=self.scaler)
        self.scaler.update()


class Automatic(Scaled):
    """By the context."""

    def make_scaler(self) -> GradScaler:
        self.context.experimental.use_amp()
        scaler = self.context.scaler
        assert scaler is not None
        scaler.load_state_dict(scaler.state_dict() | {"scale": FIRST, "growth_interval": 3})
        return scaler

    def update(self, loss: Tensor) -> None:
        self.scales.append(self.scaler.get_scale())
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)


@pytest.mark.parametrize("kind", [Scaled, Automatic])
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_the_scale_grows_after_its_interval_and_the_weights_do_not_know_of_it(
    kind: type[Scaled], micro_batches: int
) -> None:
    trial = fit(kind, context={"micro_batches": micro_batches})

    assert trial.scales[::micro_batches] == [FIRST * 2 ** (n // 3) for n in range(8)]
    assert trial.weights == [2.0**-n for n in range(8)]


@pytest.mark.parametrize("kind", [Scaled, Automatic])
def test_an_overflow_shrinks_the_scale_and_micro_batches_the_weight_alone(kind: type[Scaled]) -> None:
    trial = fit(kind, options={"overflows": (1, 4)}, max_length=Batch(6))

    assert trial.weights == [1, 1 / 2, 1 / 2, 1 / 4, 1 / 8, 1 / 8]
    assert trial.scales == [FIRST, FIRST, FIRST / 2, FIRST / 2, FIRST / 2, FIRST / 4]


@pytest.mark.parametrize("kind", [Scaled, Automatic])
def test_with_aggregation_the_scale_counts_optimizer_steps(kind: type[Scaled]) -> None:
    trial = fit(kind, context={"aggregation_frequency": 2}, max_length=Batch(16))

    assert trial.weights == [2.0 ** -(n // 2) for n in range(16)]
    assert trial.scales == [FIRST * 2 ** (n // 6) for n in range(16)]


@pytest.mark.parametrize("kind", [Scaled, Automatic])
def test_with_aggregation_an_overflow_spoils_the_batches_of_that_step_alone(kind: type[Scaled]) -> None:
    trial = fit(kind, context={"aggregation_frequency": 2}, options={"overflows": (2,)}, max_length=Batch(8))

    assert trial.weights == [1, 1, 1 / 2, 1 / 2, 1 / 2, 1 / 2, 1 / 4, 1 / 4]


@pytest.mark.parametrize("kind", [Scaled, Automatic])
def test_gradients_are_clipped_after_they_are_unscaled(kind: type[Scaled]) -> None:
    class Clipped(kind):  # type: ignore[misc, valid-type]
        def update(self, loss: Tensor) -> None:
            loss = loss if kind is Automatic else self.scaler.scale(loss)
            self.context.backward(loss)
            scaler = None if kind is Automatic else self.scaler
            self.context.step_optimizer(self.optimizer, clip_grads=clip, scaler=scaler)
            if scaler is not None:
                scaler.update()

    seen = []

    def clip(parameters: Any) -> None:
        seen.extend(parameter.grad.item() for parameter in parameters)

    fit(Clipped, max_length=Batch(4))
    assert seen == [2.0, 1.0, 0.5, 0.25]


@pytest.mark.parametrize("kind", [Scaled, Automatic])
@pytest.mark.parametrize("aggregation", [1, 2])
def test_the_scale_goes_on_from_a_checkpoint(kind: type[Scaled], aggregation: int) -> None:
    context = {"aggregation_frequency": aggregation, "checkpoints": "straight"}
    straight = fit(kind, context=context, max_length=Batch(11))
    for length in (5, 11):
        trial = fit(kind, context=context | {"checkpoints": "halves"}, max_length=Batch(length))

    assert trial.scales == straight.scales[5:]
    assert trial.weights == straight.weights[5:]


def test_a_checkpoint_with_a_scaler_does_not_fit_a_trial_without_one() -> None:
    fit(Scaled, context={"checkpoints": "kept"}, max_length=Batch(2))
    with refused("checkpoint-scaler-differs", StateMismatch):
        fit(context={"checkpoints": "kept"})


def test_autocast_is_on_in_training_and_validation() -> None:
    seen = []

    class Watched(Automatic):
        def loss(self, batch: dict[str, Tensor]) -> Tensor:
            seen.append(torch.is_autocast_enabled("cpu"))
            return super().loss(batch)

    fit(Watched, max_length=Batch(2))
    assert seen and all(seen)
    assert not torch.is_autocast_enabled("cpu")


def test_two_ways_of_scaling_are_one_too_many() -> None:
    class Both(Scaled):
        def make_scaler(self) -> GradScaler:
            super().make_scaler()
            self.context.experimental.use_amp()
            raise AssertionError

    class Unknown(Scaled):
        def make_scaler(self) -> GradScaler:
            return GradScaler("cpu")

    with refused("amp-and-a-scaler", UsageError):
        fit(Both)
    with refused("scaler-not-wrapped", UsageError):
        fit(Unknown)
