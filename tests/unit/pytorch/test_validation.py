"""Validation: every sample once, numbers put together as asked, and nothing of it touches the training."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import data

from everstep.errors import UsageError
from everstep.pytorch import Batch, MetricReducer, PyTorchTrial, Reducer
from lab.one_weight import Ones, OneWeight, fit, reported
from lab.refused import refused


def validated(trial: OneWeight) -> list[dict[str, Any]]:
    return [metrics for (metrics,) in trial.diary.of("on_validation_end")]


def indices(_: Tensor, batch: dict[str, Tensor]) -> dict[str, Any]:
    """One metric: the mean of the numbers of the batch's samples."""
    return {"index": batch["index"].double().mean()}


def test_the_metrics_are_those_of_the_weight_at_that_batch() -> None:
    trial = fit(validation_period=Batch(2))

    assert [each["validation_loss"] for each in validated(trial)] == [4.0**-n for n in (2, 4, 6, 8)]
    assert [(line["batches"], line["metrics"]["validation_loss"]) for line in reported("validation")] == [
        (n, 4.0**-n) for n in (2, 4, 6, 8)
    ]


def test_each_sample_is_evaluated_once_and_in_order() -> None:
    trial = fit(max_length=Batch(1), options={"validation_size": 5})
    assert trial.evaluated == [[0, 1], [2, 3], [4]]


def test_an_average_is_weighted_by_samples() -> None:
    trial = fit(max_length=Batch(1), options={"validation_size": 5, "evaluate": indices})
    assert validated(trial) == [{"index": (0 + 1 + 2 + 3 + 4) / 5}]


@pytest.mark.parametrize(
    ("reducer", "expected"), [(Reducer.SUM, 0.5 + 2.5 + 4), (Reducer.MAX, 4.0), (Reducer.MIN, 0.5), (Reducer.AVG, 2.0)]
)
def test_built_in_reducers(reducer: Reducer, expected: float) -> None:
    trial = fit(max_length=Batch(1), options={"validation_size": 5, "evaluate": indices, "reducer": reducer})
    assert validated(trial) == [{"index": expected}]


def test_a_reducer_for_each_metric() -> None:
    def both(_: Tensor, batch: dict[str, Tensor]) -> dict[str, Any]:
        return {"low": batch["index"].min(), "high": batch["index"].max()}

    options = {"evaluate": both, "reducer": {"low": Reducer.MIN, "high": Reducer.MAX}}
    assert validated(fit(max_length=Batch(1), options=options)) == [{"low": 0.0, "high": 5.0}]


@pytest.mark.parametrize("reducer", [{"other": Reducer.MIN}, {}, "AVG", {"index": "MIN"}, None])
def test_reducers_that_do_not_name_the_metrics_are_refused(reducer: Any) -> None:
    with refused(("evaluation-reducer-unknown", "evaluation-reducer-names-differ"), UsageError):
        fit(max_length=Batch(1), options={"evaluate": indices, "reducer": reducer})


def test_metrics_may_be_arrays() -> None:
    def per_class(_: Tensor, batch: dict[str, Tensor]) -> dict[str, Any]:
        return {"matrix": torch.tensor([[1.0, float(batch["index"][0])]])}

    (metrics,) = validated(fit(max_length=Batch(1), options={"evaluate": per_class}))
    assert metrics["matrix"].tolist() == [[1.0, (0 + 2 + 4) / 3]]
    assert reported("validation")[0]["metrics"]["matrix"] == [[1.0, 2.0]]


def test_the_whole_dataset_at_once_gives_the_same_numbers() -> None:
    class Whole(OneWeight):
        evaluate_batch = PyTorchTrial.evaluate_batch

        def evaluate_full_dataset(self, data_loader: Any) -> dict[str, Any]:
            losses = [(len(batch["x"]), self.loss(batch)) for batch in data_loader]
            samples = sum(number for number, _ in losses)
            return {"validation_loss": sum(number * loss for number, loss in losses) / samples}

    options = {"validation_size": 5}
    assert validated(fit(Whole, options=options, validation_period=Batch(3))) == validated(
        fit(options=options, validation_period=Batch(3), context={"checkpoints": "other"})
    )


def test_exactly_one_way_to_evaluate_must_be_defined() -> None:
    class Neither(OneWeight):
        evaluate_batch = PyTorchTrial.evaluate_batch

    class Both(OneWeight):
        def evaluate_full_dataset(self, data_loader: Any) -> dict[str, Any]:
            return {}

    with refused("trial-needs-one-evaluation", UsageError):
        fit(Neither)
    with refused("trial-needs-one-evaluation", UsageError):
        fit(Both)


def test_evaluate_batch_may_leave_the_index_out() -> None:
    class Short(OneWeight):
        def evaluate_batch(self, batch: Any) -> dict[str, Any]:
            return {"validation_loss": self.loss(batch)}

    assert validated(fit(Short)) == [{"validation_loss": 4.0**-8}]


def test_metrics_must_be_the_same_in_every_batch() -> None:
    def fickle(_: Tensor, batch: dict[str, Tensor]) -> dict[str, Any]:
        return {f"metric{int(batch['index'][0])}": 1.0}

    with refused("validation-metrics-differ", UsageError):
        fit(max_length=Batch(1), options={"evaluate": fickle})


@pytest.mark.parametrize("result", [None, 3.0, [1.0], {"word": "good"}])
def test_what_is_no_metric_is_refused(result: Any) -> None:
    with refused(("evaluation-result-not-a-dict", "metric-not-a-number"), UsageError):
        fit(max_length=Batch(1), options={"evaluate": lambda *_: result})


def test_a_validation_without_a_batch_is_an_error() -> None:
    with refused("validation-without-batches", UsageError):
        fit(max_length=Batch(1), options={"validation_size": 0, "loader": data.DataLoader})


def test_outputs_of_all_batches_are_told_in_order() -> None:
    trial = fit(max_length=Batch(1), options={"evaluate": indices})
    assert trial.diary.of("on_validation_epoch_end") == [([{"index": 0.5}, {"index": 2.5}, {"index": 4.5}],)]


def test_an_iterable_dataset_can_be_validated_on() -> None:
    class Stream(data.IterableDataset):
        def __iter__(self) -> Any:
            return (Ones()[index] for index in range(5))

    class OfStream(OneWeight):
        def build_validation_data_loader(self) -> Any:
            return data.DataLoader(Stream(), batch_size=2)

    trial = fit(OfStream, options={"evaluate": indices}, validation_period=Batch(4))
    assert validated(trial) == [{"index": 2.0}] * 2


def test_models_are_in_their_modes_and_without_gradients_in_validation() -> None:
    seen = []

    class Watched(OneWeight):
        def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
            seen.append(("validation", self.model.training, self.loss(batch).requires_grad))
            return {"validation_loss": 0.0}

        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            seen.append(("training", self.model.training, True))
            return super().train_batch(batch, epoch_idx, batch_idx)

    fit(Watched, max_length=Batch(2), validation_period=Batch(1), options={"validation_size": 2})
    assert seen == [("training", True, True), ("validation", False, False)] * 2


def test_a_module_that_is_kept_in_evaluation_mode_stays_so() -> None:
    class Frozen(OneWeight):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            self.model.eval()
            return super().train_batch(batch, epoch_idx, batch_idx)

    trial = fit(Frozen, max_length=Batch(2), validation_period=Batch(1))
    assert not trial.model.training


def test_how_often_is_validated_does_not_change_the_training() -> None:
    class Noisy(OneWeight):
        def loss(self, batch: dict[str, Tensor]) -> Tensor:
            return super().loss(batch) * (0.5 + torch.rand(()))

    def outcome(period: Any) -> Any:
        trial = fit(Noisy, options={"shuffle": True}, validation_period=period, context={"checkpoints": str(period)})
        return trial.weights, trial.samples, validated(trial)[-1]

    assert outcome(None) == outcome(Batch(1)) == outcome(Batch(3))


class NoisyOnes(Ones):
    """With a random transform."""

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return super().__getitem__(index) | {"noise": torch.rand(())}


class Streamed(data.IterableDataset):
    def __iter__(self) -> Any:
        return (NoisyOnes()[index] for index in range(6))


@pytest.mark.parametrize("dataset", [NoisyOnes(6), Streamed()])
def test_what_is_random_in_the_data_does_not_depend_on_what_is_evaluated_before(dataset: Any) -> None:
    """So each worker reads its batches as any other would."""

    class Noisy(OneWeight):
        draws = 0

        def build_validation_data_loader(self) -> Any:
            return data.DataLoader(dataset, batch_size=2)

        def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
            torch.rand(self.draws)
            return {"noise": batch["noise"].mean()}

    quiet = validated(fit(Noisy, max_length=Batch(1)))
    Noisy.draws = 3
    assert validated(fit(Noisy, max_length=Batch(1), context={"checkpoints": "other"})) == quiet


# --- the user's reducers ---


class Last(MetricReducer):
    """The largest index, and the number of samples."""

    def reset(self) -> None:
        self.seen: list[int] = []

    def update(self, batch: dict[str, Tensor]) -> None:
        self.seen += batch["index"].tolist()

    def per_slot_reduce(self) -> Any:
        return {"most": max(self.seen), "samples": torch.tensor(len(self.seen))}

    def cross_slot_reduce(self, per_slot_metrics: list[Any]) -> Any:
        return {
            "most": max(each["most"] for each in per_slot_metrics),
            "samples": sum(int(each["samples"]) for each in per_slot_metrics),
        }


class Reduced(OneWeight):
    """`wrapped`: the arguments of each wrap_reducer()."""

    def __init__(self, context: Any, wrapped: list[tuple[Any, ...]], uses: dict[str, bool] | None = None, **more: Any):
        super().__init__(context, **more)
        self.reducers = [context.wrap_reducer(*each, **(uses or {})) for each in wrapped]

    def tell(self, batch: dict[str, Tensor]) -> None:
        for reducer in self.reducers:
            if isinstance(reducer, Last):
                reducer.update(batch)
            else:
                for index in batch["index"].tolist():
                    reducer.update(index)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        self.tell(batch)
        return super().train_batch(batch, epoch_idx, batch_idx)

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        self.tell(batch)
        return super().evaluate_batch(batch, batch_idx)


def averages(trial: OneWeight) -> list[dict[str, Any]]:
    return [average for average, _ in trial.diary.of("on_training_workload_end")]


@pytest.mark.parametrize("micro_batches", [1, 4])
def test_a_reducer_of_a_class_sees_each_window_and_each_validation(micro_batches: int) -> None:
    batches = 8 // micro_batches
    trial = fit(
        Reduced,
        context={"micro_batches": micro_batches},
        options={"wrapped": [(Last(),)]},
        max_length=Batch(batches),
        reporting_period=Batch(batches // 2),
    )

    assert [(each["most"], each["samples"]) for each in averages(trial)] == [(7, 8), (15, 8)]
    assert [(each["most"], each["samples"]) for each in validated(trial)] == [(5, 6)]


@pytest.mark.parametrize("micro_batches", [1, 2, 4])
def test_a_function_gets_all_values_in_the_order_of_the_data(micro_batches: int) -> None:
    seen = []

    def keep(values: list[int]) -> float:
        seen.append(values)
        return float(len(values))

    trial = fit(
        Reduced,
        context={"micro_batches": micro_batches},
        options={"wrapped": [(keep, "number")]},
        max_length=Batch(8 // micro_batches),
    )

    assert seen == [list(range(16)), list(range(6))]
    assert averages(trial)[0]["number"] == 16
    assert validated(trial)[0]["number"] == 6


def test_a_reducer_may_be_for_training_or_validation_alone() -> None:
    def made(**uses: bool) -> OneWeight:
        options = {"wrapped": [(len, "number")], "uses": uses}
        return fit(Reduced, options=options, context={"checkpoints": str(uses)})

    trial = made(for_validation=False)
    assert "number" in averages(trial)[0] and "number" not in validated(trial)[0]
    trial = made(for_training=False)
    assert "number" not in averages(trial)[0] and "number" in validated(trial)[0]


def test_a_name_and_a_dict_do_not_go_together_nor_neither_of_them() -> None:
    with refused("reducer-without-a-name", UsageError):
        fit(Reduced, options={"wrapped": [(len,)]})
    with refused("named-reducer-returned-a-dict", UsageError):
        fit(Reduced, options={"wrapped": [(Last(), "last")]}, context={"checkpoints": "other"})


@pytest.mark.parametrize("arguments", [(3,), ("mean",), (len, 7)])
def test_what_is_no_reducer_is_refused(arguments: tuple[Any, ...]) -> None:
    with refused(("not-a-reducer", "reducer-name-not-a-string"), UsageError):
        fit(Reduced, options={"wrapped": [arguments]})
