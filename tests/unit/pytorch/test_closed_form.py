"""Weight and loss of each batch are what a pencil says."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import data

from everstep import pytorch
from everstep.errors import UsageError
from everstep.pytorch import Batch, Epoch
from lab.one_weight import SIZE, OneWeight, Target, Weight, fit, trainer, training_losses
from lab.refused import refused


def test_the_weight_and_loss_of_each_batch_are_those_of_the_closed_form() -> None:
    trial = fit(max_length=Batch(60), reporting_period=Batch(7))

    assert trial.weights == [2.0**-n for n in range(60)]
    assert training_losses(trial) == [4.0**-n for n in range(60)]
    assert trial.w == 2.0**-60


def test_further_metrics_are_there_for_each_batch() -> None:
    trial = fit(options={"more": lambda trial: {"double": 2 * trial.model.w.sum(), "seven": 7}})

    ((average, batches),) = trial.diary.of("on_training_workload_end")
    assert [float(batch["double"]) for batch in batches] == [2.0 * 2.0**-n for n in range(8)]
    assert average["seven"] == 7


@pytest.mark.parametrize("micro_batches", [1, 4])
def test_a_metric_is_what_it_was_when_it_was_returned(micro_batches: int) -> None:
    """Even if the script changes that tensor in the next micro-batch or batch."""
    total = torch.zeros(())
    trial = fit(options={"more": lambda trial: {"total": total.add_(1)}}, context={"micro_batches": micro_batches})

    ((_, batches),) = trial.diary.of("on_training_workload_end")
    expected = [sum(range(n * micro_batches + 1, (n + 1) * micro_batches + 1)) / micro_batches for n in range(8)]
    assert [batch["total"] for batch in batches] == expected


def test_a_bare_tensor_is_the_loss() -> None:
    class Bare(OneWeight):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Tensor:
            return super().train_batch(batch, epoch_idx, batch_idx)["loss"]

    assert training_losses(fit(Bare)) == [4.0**-n for n in range(8)]


def test_what_is_no_metric_is_refused_by_name() -> None:
    class Nothing(OneWeight):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            super().train_batch(batch, epoch_idx, batch_idx)

    with refused("train-batch-result-unknown", UsageError):
        fit(Nothing)
    with refused("metric-not-a-number", UsageError):
        fit(options={"more": lambda trial: {"word": "good"}})


def test_a_batch_is_all_its_micro_batches_and_one_step() -> None:
    trial = fit(context={"micro_batches": 4})

    micro_batches_of_batch = [
        [micro_batch for _, batch, micro_batch in trial.batches if batch == number] for number in range(2)
    ]
    assert micro_batches_of_batch == [[[0, 1], [2, 3], [4, 5], [6, 7]], [[8, 9], [10, 11], [12, 13], [14, 15]]]
    assert trial.weights == [2.0**-n for n in range(8)]
    assert training_losses(trial) == [4.0**-n for n in range(8)]


def test_the_metrics_of_a_batch_are_the_mean_over_its_samples() -> None:
    """Of 5 samples in micro-batches of 2: batches of 4 and 1, and the second one's other micro-batch is empty."""
    trial = fit(
        Target,
        context={"micro_batches": 2},
        options={"size": 5, "lr": 0.0},
        max_length=Epoch(1),
        reporting_period=Batch(2),
    )

    square = [(1 - index / SIZE) ** 2 for index in range(5)]
    ((average, batches),) = trial.diary.of("on_training_workload_end")
    assert [batch["loss"] for batch in batches] == pytest.approx([sum(square[:4]) / 4, square[4]])
    assert average["loss"] == pytest.approx(sum(square) / 5)


def test_the_gradient_of_a_short_batch_is_the_mean_over_its_samples() -> None:
    trial = fit(Target, context={"micro_batches": 2}, options={"size": 7}, max_length=Epoch(1))  # 4, then 2 + 1

    w = 1.0
    for first, end in ((0, 4), (4, 7)):
        target = sum(index / SIZE for index in range(first, end)) / (end - first)
        w -= 0.25 * 2 * (w - target)
    assert trial.w == pytest.approx(w)


def test_a_last_batch_that_is_not_full_is_dropped_if_asked() -> None:
    trial = fit(context={"micro_batches": 2}, options={"size": 7, "drop_last": True}, max_length=Epoch(2))

    assert trial.samples == [0, 1, 2, 3] * 2


def test_gradients_are_clipped_by_value() -> None:
    trial = fit(
        options={"clip": lambda parameters: nn.utils.clip_grad_value_(parameters, 0.5)}, context={"micro_batches": 2}
    )

    w = 1.0
    for n in range(8):
        assert trial.weights[n] == w
        w -= 0.25 * min(2 * w, 0.5)


def test_gradients_are_clipped_by_norm() -> None:
    def clip(parameters: Any) -> None:
        nn.utils.clip_grad_norm_(parameters, 1.0)

    trial = fit(options={"clip": clip})

    w = 1.0
    for n in range(8):
        assert trial.weights[n] == pytest.approx(w, abs=1e-5)  # torch adds 1e-6 to the norm
        w -= 0.25 * min(2 * w, 1.0)


def test_gradients_are_clipped_once_per_batch_when_they_are_the_mean_over_its_micro_batches() -> None:
    seen = []

    def clip(parameters: Any) -> None:
        seen.extend(parameter.grad.item() for parameter in parameters)

    fit(options={"clip": clip}, context={"micro_batches": 4}, max_length=Batch(3))

    assert seen == [2.0, 1.0, 0.5]


# --- aggregation ---


def test_with_aggregation_the_weight_changes_with_every_nth_batch_by_the_mean() -> None:
    trial = fit(context={"aggregation_frequency": 2})
    assert trial.weights == [1, 1, 1 / 2, 1 / 2, 1 / 4, 1 / 4, 1 / 8, 1 / 8]

    trial = fit(context={"aggregation_frequency": 4, "micro_batches": 2, "checkpoints": "other"})
    assert trial.weights == [1, 1, 1, 1, 1 / 2, 1 / 2, 1 / 2, 1 / 2]


def test_aggregated_gradients_are_summed_if_asked() -> None:
    options = {"lr": 0.125, "average_aggregated_gradients": False}
    trial = fit(context={"aggregation_frequency": 2}, options=options)
    assert trial.weights == [1, 1, 1 / 2, 1 / 2, 1 / 4, 1 / 4, 1 / 8, 1 / 8]


def test_the_gradients_of_different_batches_are_gathered() -> None:
    trial = fit(Target, context={"aggregation_frequency": 2}, max_length=Batch(2))  # samples 0 and 1, then 2 and 3

    assert trial.w == 1 - 0.25 * 2 * (1 - (0 + 1 + 2 + 3) / 4 / SIZE)


def test_zeroing_gradients_by_hand_does_not_go_with_aggregation() -> None:
    class ByHand(OneWeight):
        def update(self, loss: Tensor) -> None:
            self.context.backward(loss)
            self.context.step_optimizer(self.optimizer, auto_zero_grads=False)
            self.optimizer.zero_grad()

    assert fit(ByHand).weights == [2.0**-n for n in range(8)]
    with refused("auto-zero-with-aggregation", UsageError):
        fit(ByHand, context={"aggregation_frequency": 2, "checkpoints": "other"})


# --- several models and optimizers ---


class TwoWeights(OneWeight):
    """A second model with an optimizer of its own, at half the rate."""

    def __init__(self, context: Any, **options: Any) -> None:
        super().__init__(context, **options)
        self.second = context.wrap_model(Weight())
        self.slow = context.wrap_optimizer(torch.optim.SGD(self.second.parameters(), lr=0.125))
        self.seconds: list[float] = []

    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        return super().loss(batch) + self.second(batch["x"]).square().mean()

    def update(self, loss: Tensor) -> None:
        self.seconds.append(self.second.w.item())
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        self.context.step_optimizer(self.slow)


def test_two_models_with_an_optimizer_each() -> None:
    trial = fit(TwoWeights)

    assert trial.weights == [2.0**-n for n in range(8)]
    assert trial.seconds == [0.75**n for n in range(8)]


def test_a_model_and_an_optimizer_that_were_wrapped_before_the_trial() -> None:
    with pytorch.init(micro_batches=1, enable_tensorboard_logging=False) as context:
        model = context.wrap_model(Weight())
        optimizer = context.wrap_optimizer(torch.optim.SGD(model.parameters(), lr=0.25))
        trial = OneWeight(context, model=model, optimizer=optimizer)
        pytorch.Trainer(trial, context).fit(max_length=Batch(4))

    assert trial.weights == [1, 1 / 2, 1 / 4, 1 / 8]


def test_torchs_own_loader_is_welcome() -> None:
    trial = fit(options={"loader": data.DataLoader}, context={"micro_batches": 2})
    assert trial.weights == [2.0**-n for n in range(8)]
    assert trial.samples == list(range(SIZE)) * 2


def test_a_loader_that_cannot_be_followed_is_refused() -> None:
    class Stream(data.IterableDataset):
        def __iter__(self) -> Any:
            return iter([{"x": torch.ones(1), "index": torch.tensor(0)}])

    class OfStream(OneWeight):
        def build_training_data_loader(self) -> Any:
            return data.DataLoader(Stream(), batch_size=2)

    class OfList(OneWeight):
        def build_training_data_loader(self) -> Any:
            return [1, 2, 3]

    with pytest.raises(UsageError, match="iterable dataset"):
        fit(OfStream)
    with pytest.raises(UsageError, match="cannot follow a builtins.list"):
        fit(OfList)


def test_two_runs_with_one_seed_are_the_same_and_with_another_they_are_not() -> None:
    class Noisy(OneWeight):
        def loss(self, batch: dict[str, Tensor]) -> Tensor:
            return super().loss(batch) * (0.5 + torch.rand(()))

    def outcome(seed: int) -> tuple[Any, ...]:
        checkpoints = f"checkpoints-{seed}-{next(numbers)}"
        trial = fit(Noisy, context={"seed": seed, "checkpoints": checkpoints}, options={"shuffle": True})
        return trial.weights, training_losses(trial), trial.diary.of("on_validation_end")

    numbers = iter(range(3))
    first = outcome(5)
    assert outcome(5) == first
    assert outcome(6) != first


def test_a_step_without_step_optimizer_is_an_error_that_says_so() -> None:
    class Idle(OneWeight):
        def update(self, loss: Tensor) -> None:
            self.context.backward(loss)

    with pytest.raises(UsageError, match=r"step"):
        fit(Idle)


def test_an_optimizer_or_scaler_that_was_not_wrapped_is_refused() -> None:
    class Stranger(OneWeight):
        def update(self, loss: Tensor) -> None:
            self.context.backward(loss)
            self.context.step_optimizer(torch.optim.SGD(self.model.parameters(), lr=1))

    with refused("optimizer-not-wrapped", UsageError):
        fit(Stranger)
    with trainer() as (trial, _), refused("step-before-training", UsageError):
        trial.context.step_optimizer(trial.optimizer)
