"""What callbacks are told, what they may do, and how a training stops."""

from __future__ import annotations

from typing import Any

import pytest

from everstep.errors import UsageError
from everstep.pytorch import Batch, Epoch, PyTorchCallback
from everstep.pytorch.callbacks import EarlyStopping
from lab.one_weight import OneWeight, fit, reported, trainer
from lab.refused import refused


def test_each_batch_is_told_with_its_epoch_and_metrics() -> None:
    trial = fit(context={"micro_batches": 2}, options={"size": 8}, max_length=Batch(4))  # 2 batches an epoch

    assert trial.diary.of("on_training_batch_start") == [(0, 0), (0, 1), (1, 2), (1, 3)]
    assert trial.diary.of("on_training_batch_end") == [
        (0, 0, {"loss": 1.0}),
        (0, 1, {"loss": 1 / 4}),
        (1, 2, {"loss": 1 / 16}),
        (1, 3, {"loss": 1 / 64}),
    ]


def test_epochs_are_told_by_number() -> None:
    trial = fit(max_length=Epoch(3), options={"size": 4})

    assert trial.diary.of("on_training_epoch_start") == [(0,), (1,), (2,)]
    assert trial.diary.of("on_training_epoch_end") == [(0,), (1,), (2,)]


def test_an_epoch_that_is_not_finished_has_no_end() -> None:
    trial = fit(max_length=Batch(10))

    assert trial.diary.of("on_training_epoch_start") == [(0,), (1,)]
    assert trial.diary.of("on_training_epoch_end") == [(0,)]


def test_hooks_of_old_scripts_that_take_no_epoch_are_called_too() -> None:
    class Old(PyTorchCallback):
        told = 0

        def on_training_epoch_start(self) -> None:  # type: ignore[override]
            self.told += 1

        def on_training_epoch_end(self) -> None:  # type: ignore[override]
            self.told += 10

    old = Old()
    fit(options={"callbacks": {"old": old}}, max_length=Epoch(2))
    assert old.told == 22


def test_several_callbacks_are_told_in_the_order_in_which_they_were_named() -> None:
    told: list[str] = []

    class Named(PyTorchCallback):
        def __init__(self, name: str) -> None:
            self.name = name

        def on_validation_end(self, metrics: dict[str, Any]) -> None:
            told.append(self.name)

    fit(options={"callbacks": {"b": Named("b"), "a": Named("a")}}, max_length=Batch(1))
    assert told == ["b", "a"]


@pytest.mark.parametrize("callbacks", [[PyTorchCallback()], None, {"a": object()}, {"a": PyTorchCallback}])
def test_what_are_no_callbacks_is_refused(callbacks: Any) -> None:
    class Wrong(OneWeight):
        def build_callbacks(self) -> Any:
            return callbacks

    with refused(("callbacks-not-a-dict", "not-a-callback"), UsageError):
        fit(Wrong)


# --- stopping ---


def test_a_stop_requested_in_a_batch_ends_with_that_batch_validated_and_saved() -> None:
    def stop(trial: OneWeight, batch: int) -> None:
        if batch == 5:
            trial.context.set_stop_requested(True)

    trial = fit(max_length=Batch(100), options={"in_batch": stop})

    assert len(trial.weights) == 6
    assert [line["batches"] for line in reported("validation")] == [6]
    assert [line["batches"] for line in reported("checkpoint")] == [6]
    assert reported("end")[0]["reason"] == "a stop was requested"


def test_a_stop_can_be_taken_back_in_the_same_batch() -> None:
    def waver(trial: OneWeight, batch: int) -> None:
        trial.context.set_stop_requested(True)
        assert trial.context.get_stop_requested()
        trial.context.set_stop_requested(False)

    assert len(fit(options={"in_batch": waver}).weights) == 8
    with trainer() as (trial, _), refused("stop-requested-not-a-bool", UsageError):
        trial.context.set_stop_requested("yes")  # type: ignore[arg-type]


def test_a_stop_requested_by_a_callback_after_a_validation_ends_there() -> None:
    class Enough(PyTorchCallback):
        context: Any = None

        def on_validation_end(self, metrics: dict[str, Any]) -> None:
            self.context.set_stop_requested(metrics["validation_loss"] < 0.01)

    enough = Enough()

    class Stopping(OneWeight):
        def build_callbacks(self) -> Any:
            enough.context = self.context
            return super().build_callbacks() | {"enough": enough}

    trial = fit(Stopping, max_length=Batch(100), validation_period=Batch(2))

    assert len(trial.weights) == 4  # 4**-4 is the first below
    assert trial.diary.count("on_validation_end") == 2, "not validated again"
    assert [line["batches"] for line in reported("checkpoint")][-1] == 4


def test_after_a_stop_a_fit_goes_on() -> None:
    def stop(trial: OneWeight, batch: int) -> None:
        if batch == 2:
            trial.context.set_stop_requested(True)

    with trainer(in_batch=stop) as (trial, made):
        made.fit(max_length=Batch(8))
        assert len(trial.weights) == 3
        made.fit(max_length=Batch(8))
        assert trial.weights == [2.0**-n for n in range(8)]


class Stopping(OneWeight):
    def __init__(self, context: Any, early: dict[str, Any], **options: Any) -> None:
        super().__init__(context, **options)
        self.callbacks["early"] = EarlyStopping(context, **early)


def test_early_stopping_waits_for_so_many_validations_that_are_no_better() -> None:
    values = iter([5.0, 4.0, 4.0, 4.5, 3.9, 4.0, 4.0, 4.0, 1.0])
    options = {
        "early": {"metric": "value", "patience": 3},
        "evaluate": lambda *_: {"value": next(values)},
        "validation_size": 2,
    }
    trial = fit(Stopping, options=options, max_length=Batch(100), validation_period=Batch(1), checkpoint_policy="none")
    assert len(trial.weights) == 8


def test_early_stopping_in_the_other_direction_takes_nan_for_no_better() -> None:
    values = iter([1.0, 2.0, float("nan"), 2.05, 9.0])
    options = {
        "early": {"metric": "value", "patience": 2, "smaller_is_better": False, "min_delta": 0.1},
        "evaluate": lambda *_: {"value": next(values)},
        "validation_size": 2,
    }
    trial = fit(Stopping, options=options, max_length=Batch(100), validation_period=Batch(1), checkpoint_policy="none")
    assert len(trial.weights) == 4


def test_early_stopping_of_a_metric_that_is_not_there() -> None:
    with pytest.raises(UsageError, match="(?s)EarlyStopping watches 'accuracy'.*validation_loss"):
        fit(Stopping, options={"early": {"metric": "accuracy"}})
    with refused("patience-not-positive", UsageError):
        fit(Stopping, options={"early": {"metric": "validation_loss", "patience": 0}})


# --- exceptions ---


class Broken(Exception):
    pass


def breaking_at(number: int, error: type[BaseException] = Broken) -> Any:
    def act(trial: OneWeight, batch: int) -> None:
        if batch == number:
            raise error

    return act


def test_an_exception_is_told_then_saved_then_raised() -> None:
    with trainer(in_batch=breaking_at(3)) as (trial, made), pytest.raises(Broken):
        made.fit(max_length=Batch(8))

    order = trial.diary.order
    assert order.index("on_exception") < order.index("on_checkpoint_upload_end") < order.index("on_trial_shutdown")
    assert [line["batches"] for line in reported("checkpoint")] == [3]
    assert reported("failure")[0]["error"].startswith("Broken")


def test_an_interrupt_saves_too() -> None:
    with pytest.raises(KeyboardInterrupt):
        fit(options={"in_batch": breaking_at(3, KeyboardInterrupt)})
    assert fit().weights == [2.0**-n for n in range(3, 8)]


def test_nothing_is_saved_where_nothing_was_trained_or_it_was_saved_already() -> None:
    with pytest.raises(Broken):
        fit(options={"in_batch": breaking_at(0)})
    assert reported("checkpoint") == []
    with pytest.raises(Broken):
        fit(options={"in_batch": breaking_at(2)}, checkpoint_period=Batch(2))
    assert len(reported("checkpoint")) == 1


@pytest.mark.parametrize("hook", ["on_validation_end", "on_training_workload_end", "on_checkpoint_save_start"])
def test_an_exception_in_a_callback_ends_the_training_with_what_is_in_memory_saved(hook: str) -> None:
    class Breaking(PyTorchCallback):
        pass

    def broken(*_: Any) -> None:
        raise Broken

    setattr(Breaking, hook, broken)
    with pytest.raises(Broken):
        fit(options={"callbacks": {"breaking": Breaking()}}, max_length=Batch(4))
    assert fit(max_length=Batch(6)).weights == [2.0**-4, 2.0**-5]


def test_all_callbacks_hear_of_the_end_also_if_one_of_them_breaks() -> None:
    class Breaking(PyTorchCallback):
        def on_trial_shutdown(self) -> None:
            raise Broken

    class Later(PyTorchCallback):
        is_told = False

        def on_trial_shutdown(self) -> None:
            self.is_told = True

    later = Later()
    with pytest.raises(Broken):
        fit(options={"callbacks": {"breaking": Breaking(), "later": later}}, max_length=Batch(1))
    assert later.is_told


# --- state ---


class Counting(PyTorchCallback):
    def __init__(self) -> None:
        self.batches = 0

    def on_training_batch_end(self, epoch_idx: int, batch_idx: int, metrics: dict[str, Any]) -> None:
        self.batches += 1

    def state_dict(self) -> dict[str, Any]:
        return {"batches": self.batches}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.batches = state_dict["batches"]


def test_the_state_of_a_callback_is_in_the_checkpoint() -> None:
    for length in (3, 8):
        counting = Counting()
        fit(options={"callbacks": {"counting": counting}}, context={"checkpoints": "kept"}, max_length=Batch(length))
    assert counting.batches == 8


def test_a_callback_may_come_or_go_between_runs() -> None:
    fit(options={"callbacks": {"counting": Counting()}}, context={"checkpoints": "kept"}, max_length=Batch(3))
    fit(options={"callbacks": {"other": Counting()}}, context={"checkpoints": "kept"}, max_length=Batch(5))
    counting = Counting()
    fit(options={"callbacks": {"counting": counting}}, context={"checkpoints": "kept"}, max_length=Batch(8))
    assert counting.batches == 3


def test_a_callback_may_add_to_a_checkpoint_and_read_it_again() -> None:
    class Adding(PyTorchCallback):
        found: Any = None

        def on_checkpoint_save_start(self, checkpoint: dict[str, Any]) -> None:
            checkpoint["mine"] = {"note": "hello"}

        def on_checkpoint_load_start(self, checkpoint: dict[str, Any]) -> None:
            self.found = checkpoint["mine"]

    for length in (3, 8):
        adding = Adding()
        fit(options={"callbacks": {"adding": adding}}, context={"checkpoints": "kept"}, max_length=Batch(length))
    assert adding.found == {"note": "hello"}


def test_the_start_is_told_with_its_batch_and_checkpoint() -> None:
    first = fit(context={"checkpoints": "kept"}, max_length=Batch(3))
    second = fit(context={"checkpoints": "kept"}, max_length=Batch(8))

    assert first.diary.of("on_trial_startup") == [(0, None)]
    ((uuid,),) = first.diary.of("on_checkpoint_upload_end")
    assert second.diary.of("on_trial_startup") == [(3, uuid)]
