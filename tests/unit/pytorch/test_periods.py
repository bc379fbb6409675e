"""How long a fit is, and what happens at which batch: reports, validations, checkpoints, in whatever unit."""

from __future__ import annotations

from typing import Any

import pytest

from everstep.errors import UsageError
from everstep.pytorch import Batch, Epoch, Record, Seconds
from lab.one_weight import OneWeight, fit, reported, trainer, training_losses
from lab.refused import refused

EPOCH = 8  # batches: 16 samples in micro-batches of 2, one micro-batch per batch


def batches_of(kind: str) -> list[int]:
    return [line["batches"] for line in reported(kind)]


def windows(trial: OneWeight) -> list[int]:
    """The number of batches in each report."""
    return [len(batches) for _, batches in trial.diary.of("on_training_workload_end")]


def test_periods_in_batches() -> None:
    trial = fit(
        max_length=Batch(20), checkpoint_period=Batch(10), validation_period=Batch(10), checkpoint_policy="none"
    )

    assert len(training_losses(trial)) == 20
    assert batches_of("validation") == [10, 20]
    assert batches_of("checkpoint") == [10, 20]


def test_a_length_in_epochs_with_periods_in_batches_that_do_not_fit_ends_with_one_more_of_each() -> None:
    trial = fit(max_length=Epoch(2), checkpoint_period=Batch(5), validation_period=Batch(6), checkpoint_policy="none")

    assert len(trial.weights) == 2 * EPOCH
    assert batches_of("validation") == [6, 12, 16]
    assert batches_of("checkpoint") == [5, 10, 15, 16]


def test_without_periods_there_is_one_of_each_at_the_end() -> None:
    trial = fit(max_length=Epoch(2))

    counts = {hook: trial.diary.count(hook) for hook in set(trial.diary.order)}
    assert counts == {
        "on_trial_startup": 1,
        "on_training_start": 1,
        "on_training_epoch_start": 2,
        "on_training_epoch_end": 2,
        "on_training_batch_start": 16,
        "on_training_batch_end": 16,
        "on_training_workload_end": 1,
        "on_validation_start": 1,
        "on_validation_epoch_start": 1,
        "on_validation_epoch_end": 1,
        "on_validation_end": 1,
        "on_checkpoint_save_start": 1,
        "on_checkpoint_write_end": 1,
        "on_checkpoint_upload_end": 1,
        "on_trial_shutdown": 1,
    }


def test_validations_in_the_middle_bring_checkpoints_with_them_by_policy() -> None:
    trial = fit(max_length=Epoch(2), validation_period=Epoch(1), checkpoint_policy="all")

    assert (trial.diary.count("on_validation_end"), trial.diary.count("on_checkpoint_upload_end")) == (2, 2)


def test_checkpoints_in_the_middle_bring_no_validations() -> None:
    trial = fit(max_length=Epoch(2), checkpoint_period=Epoch(1))

    assert (trial.diary.count("on_validation_end"), trial.diary.count("on_checkpoint_upload_end")) == (1, 2)


def test_a_collection_is_a_schedule() -> None:
    fit(max_length=Batch(8), checkpoint_period=Batch([2, 5]), validation_period=Batch({3}), checkpoint_policy="none")

    assert batches_of("checkpoint") == [2, 5, 8]
    assert batches_of("validation") == [3, 8]


def test_periods_in_records_are_due_with_the_batch_that_reaches_them() -> None:
    fit(max_length=Record(31), validation_period=Record(10), checkpoint_policy="none")  # 2 records a batch

    assert batches_of("validation") == [5, 10, 15, 16]
    assert reported("end")[0]["records"] == 32


def test_a_length_in_seconds_ends_with_the_first_batch_after_it() -> None:
    trial = fit(max_length=Seconds(0.05))

    assert len(trial.weights) >= 1
    assert batches_of("validation") == [len(trial.weights)]


def test_reports_depend_on_their_own_period_alone() -> None:
    trial = fit(max_length=Batch(20), reporting_period=Batch(5), validation_period=Batch(7), checkpoint_policy="none")

    assert batches_of("training") == [5, 10, 15, 20]
    assert windows(trial) == [5, 5, 5, 5]
    averages = [average["loss"] for average, _ in trial.diary.of("on_training_workload_end")]
    losses = [4.0**-n for n in range(20)]
    assert averages == [sum(losses[start : start + 5]) / 5 for start in range(0, 20, 5)]


def test_what_is_left_of_a_period_is_reported_at_the_end() -> None:
    trial = fit(max_length=Batch(8), reporting_period=Batch(3))
    assert windows(trial) == [3, 3, 2]


def test_of_an_epochs_last_batch_everything_comes_in_one_order() -> None:
    trial = fit(max_length=Epoch(1), validation_period=Epoch(1), checkpoint_period=Epoch(1), reporting_period=Epoch(1))

    order = trial.diary.order
    assert order[:3] == ["on_trial_startup", "on_training_start", "on_training_epoch_start"]
    assert order[3:19] == ["on_training_batch_start", "on_training_batch_end"] * EPOCH
    assert order[19:] == [
        "on_training_epoch_end",
        "on_training_workload_end",
        "on_validation_start",
        "on_validation_epoch_start",
        "on_validation_epoch_end",
        "on_validation_end",
        "on_checkpoint_save_start",
        "on_checkpoint_write_end",
        "on_checkpoint_upload_end",
        "on_trial_shutdown",
    ]


def test_a_validation_before_the_first_batch_if_asked() -> None:
    trial = fit(max_length=Batch(4), step_zero_validation=True)

    assert batches_of("validation") == [0, 4]
    assert [metrics["validation_loss"] for (metrics,) in trial.diary.of("on_validation_end")] == [1.0, 4.0**-4]


def test_test_mode_is_one_batch_one_validation_batch_one_checkpoint() -> None:
    trial = fit(max_length=Epoch(1), test_mode=True)

    assert len(trial.batches) == 1
    assert len(trial.evaluated) == 1
    assert trial.diary.count("on_checkpoint_upload_end") == 1


def test_test_mode_needs_no_length_and_does_not_go_on_from_a_checkpoint() -> None:
    fit(max_length=Batch(3))
    for _ in range(2):
        trial = fit(max_length=None, test_mode=True)
        assert trial.weights == [1.0]


def test_test_mode_leaves_the_run_alone() -> None:
    fit(max_length=Batch(4), test_mode=True)
    assert fit(max_length=Batch(4)).weights == [1, 1 / 2, 1 / 4, 1 / 8]


@pytest.mark.parametrize("lengths", [(1, 2, 9), (4, 5, 6, 7), (3, 3, 8), (8, 9, 16)])
def test_a_fit_goes_on_where_the_last_one_ended(lengths: tuple[int, ...]) -> None:
    with trainer() as (trial, made):
        for length in lengths:
            made.fit(max_length=Batch(length))
            assert trial.weights == [2.0**-n for n in range(length)]
            assert [batch for _, batch, _ in trial.batches] == list(range(length))
        assert trial.samples == [n % 16 for n in range(2 * lengths[-1])]
    assert training_losses(trial) == [4.0**-n for n in range(lengths[-1])]


@pytest.mark.parametrize("length", [Batch(8), Batch(7), Batch(1), Epoch(1), Record(16), Record(15)])
def test_a_length_that_is_reached_already_trains_and_validates_nothing(length: Any) -> None:
    context = {"checkpoints": "kept"}
    fit(context=context, max_length=Batch(8))
    trial = fit(context=context, max_length=length)

    assert trial.batches == []
    assert trial.diary.count("on_validation_end") == trial.diary.count("on_training_start") == 0
    assert trial.w == 2.0**-8, "it holds what was trained"


def test_the_length_of_the_experiments_configuration() -> None:
    def trained(max_length: Any, **more: Any) -> int:
        trainings = f"{max_length}"
        context = {"exp_conf": {"name": trainings, "searcher": {"max_length": max_length}, **more}}
        return len(fit(context=context, max_length=None).weights)

    assert trained(3) == trained({"batches": 3}) == 3
    assert trained({"epochs": 2}) == 2 * EPOCH
    assert trained({"records": 10}, hyperparameters={"global_batch_size": 2}) == 5
    with refused("searcher-max-length-without-batch-size", UsageError):
        trained({"records": 10})
    with refused("searcher-max-length-unknown", UsageError):
        trained({"steps": 10})


def test_what_fit_is_given_goes_before_the_configuration() -> None:
    assert len(fit(context={"exp_conf": {"searcher": {"max_length": 3}}}, max_length=Batch(5)).weights) == 5


# --- wrong options ---


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"checkpoint_policy": "bets"}, "checkpoint-policy-unknown"),
        ({"checkpoint_policy": None}, "checkpoint-policy-unknown"),
        ({"max_length": 10}, "max-length-not-a-length"),
        ({"max_length": None}, "max-length-missing"),
        ({"max_length": Batch([3, 4])}, "max-length-not-a-length"),
        ({"validation_period": 3}, "period-not-a-period"),
        ({"checkpoint_period": "Batch(3)"}, "period-not-a-period"),
        ({"reporting_period": None}, "reporting-period-missing"),
    ],
)
def test_a_wrong_option_is_named_with_what_would_be_right(arguments: dict[str, Any], code: str) -> None:
    (name,) = arguments
    with refused(code, UsageError, match=name):
        fit(**{"max_length": Batch(1), **arguments})


@pytest.mark.parametrize("unit", [Batch, Epoch, Record])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "10", [2, 0], [1.5], None])
def test_a_count_is_a_whole_number_of_one_or_more(unit: Any, value: Any) -> None:
    with refused("train-unit-not-positive", UsageError):
        unit(value)


@pytest.mark.parametrize("value", [0, -1, True, float("nan"), "soon", [0.0]])
def test_a_time_is_above_zero(value: Any) -> None:
    with refused("seconds-not-positive", UsageError):
        Seconds(value)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"aggregation_frequency": 0}, "aggregation_frequency=0"),
        ({"aggregation_frequency": True}, "aggregation_frequency=True"),
        ({"aggregation_frequency": 1.5}, "aggregation_frequency=1.5"),
        ({"micro_batches": 0}, "micro_batches=0"),
        ({"micro_batches": "two"}, "micro_batches='two'"),
        ({"reduce": "exakt"}, "exakt"),
    ],
)
def test_a_wrong_setting_of_the_context_is_named(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        fit(context=settings, max_length=Batch(1))
