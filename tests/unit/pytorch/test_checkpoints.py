"""Checkpoints of a trial: when there is one, what it holds, and that a trial that resumes from it is the same."""

from __future__ import annotations

import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ExponentialLR

import everstep
from everstep.errors import CheckpointBroken, EverstepError, NoCheckpoint, StateMismatch, UsageError
from everstep.pytorch import Batch, Epoch, LRScheduler
from lab.one_weight import OneWeight, Target, Weight, fit, reported, trainer, training_losses
from lab.refused import refused

KEPT = {"checkpoints": "kept"}


def steps_in(folder: str = "kept") -> list[int]:
    with everstep.Checkpointer(folder) as checkpointer:
        return [each.step for each in checkpointer.list()]


class Everything(Target):
    """Order, momentum, a scheduler and noise all count."""

    def __init__(self, context: Any, **options: Any) -> None:
        super().__init__(context, lr=0.1, momentum=0.9, shuffle=True, **options)
        scheduler = ExponentialLR(self.optimizer, gamma=0.95)
        context.wrap_lr_scheduler(scheduler, LRScheduler.StepMode.STEP_EVERY_BATCH)

    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        return super().loss(batch) * (0.5 + torch.rand(()))


# --- resuming ---


@pytest.mark.parametrize("cuts", [(1,), (8,), (5, 11), (7, 8, 9, 16)])
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_a_training_in_parts_is_the_same_as_one_without_a_break(cuts: tuple[int, ...], micro_batches: int) -> None:
    """Shuffled, in the middle of epochs and at their ends."""
    straight = fit(
        Everything, context={"checkpoints": "straight", "micro_batches": micro_batches}, max_length=Batch(20)
    )
    samples: list[int] = []
    weights: list[float] = []
    losses: list[float] = []
    for length in (*cuts, 20):
        part = fit(Everything, context=KEPT | {"micro_batches": micro_batches}, max_length=Batch(length))
        samples, weights = samples + part.samples, weights + part.weights
        losses += training_losses(part)

    assert samples == straight.samples
    assert weights == straight.weights
    assert losses == training_losses(straight)
    assert part.w == straight.w
    assert part.diary.of("on_validation_end")[-1] == straight.diary.of("on_validation_end")[-1]


def test_a_run_that_broke_off_goes_on_by_itself() -> None:
    def breaking(trial: OneWeight, batch: int) -> None:
        if batch == 11:
            raise ZeroDivisionError

    straight = fit(Everything, context={"checkpoints": "straight"}, max_length=Epoch(2))
    with pytest.raises(ZeroDivisionError):
        fit(Everything, options={"in_batch": breaking}, max_length=Epoch(2))
    trial = fit(Everything, max_length=Epoch(2))

    assert trial.weights == straight.weights[11:]
    assert trial.samples == straight.samples[22:]
    assert trial.w == straight.w


def test_what_is_lost_after_the_last_checkpoint_is_trained_again() -> None:
    """As after kill -9: nothing is saved at the end."""
    with trainer(Everything, context=KEPT) as (trial, made):
        made.fit(max_length=Batch(6), checkpoint_period=Batch(4))
    with everstep.Checkpointer("kept") as checkpointer:
        checkpointer.delete(6)
    again = fit(Everything, context=KEPT, max_length=Batch(6))

    assert again.weights == trial.weights[4:]
    assert again.w == trial.w


def test_other_hyperparameters_are_another_run() -> None:
    fit(context={"hparams": {"lr": 1}}, max_length=Batch(3))
    assert fit(context={"hparams": {"lr": 2}}, max_length=Batch(3)).weights[0] == 1.0


def test_the_micro_batches_of_a_batch_stay_what_they_were() -> None:
    straight = fit(Everything, context={"micro_batches": 3, "checkpoints": "straight"}, max_length=Batch(6))
    fit(Everything, context=KEPT | {"micro_batches": 3}, max_length=Batch(2))
    trial = fit(Everything, context=KEPT | {"micro_batches": 1}, max_length=Batch(6))

    assert trial.samples == straight.samples[12:]
    assert trial.w == straight.w


def test_gathered_gradients_are_in_the_checkpoint() -> None:
    context = {"aggregation_frequency": 4}
    straight = fit(Target, context=context | {"checkpoints": "straight"})
    for length in (2, 3, 8):
        trial = fit(Target, context=context | KEPT, max_length=Batch(length))
    assert trial.w == straight.w


def test_a_reporting_period_goes_on_over_a_break() -> None:
    """An exception in the middle of it: the batches before are in the next report."""

    def breaking(trial: OneWeight, batch: int) -> None:
        if batch == 5:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fit(options={"in_batch": breaking}, context=KEPT, reporting_period=Batch(4))
    trial = fit(context=KEPT, reporting_period=Batch(4))

    assert training_losses(trial) == [4.0**-n for n in range(4, 8)]


def test_a_checkpoint_of_elsewhere_by_its_uuid() -> None:
    first = fit(Everything, context={"checkpoints": "elsewhere"}, max_length=Batch(5))
    ((uuid,),) = first.diary.of("on_checkpoint_upload_end")
    trial = fit(Everything, context=KEPT, max_length=Batch(9), latest_checkpoint=uuid)
    straight = fit(Everything, context={"checkpoints": "straight"}, max_length=Batch(9))

    assert trial.weights == straight.weights[5:]
    assert reported("begin")[-2]["resumed_from"] == uuid
    assert steps_in("kept") == [9] and steps_in("elsewhere") == [5]


def test_an_earlier_checkpoint_by_its_uuid_goes_before_the_newest() -> None:
    first = fit(context=KEPT, max_length=Batch(6), checkpoint_period=Batch(3))
    (uuid,) = first.diary.of("on_checkpoint_upload_end")[0]
    trial = fit(context=KEPT, max_length=Batch(5), latest_checkpoint=uuid)

    assert trial.weights == [2.0**-3, 2.0**-4]


def test_a_checkpoint_that_nobody_knows() -> None:
    with refused("checkpoint-uuid-unknown", NoCheckpoint):
        fit(latest_checkpoint="00000000-0000-0000-0000-000000000000")
    with refused("checkpoint-uuid-invalid", UsageError):
        fit(latest_checkpoint="../../etc/passwd")


def test_no_validation_before_the_first_batch_of_a_run_that_goes_on() -> None:
    fit(context=KEPT, max_length=Batch(2))
    trial = fit(context=KEPT, max_length=Batch(4), step_zero_validation=True)
    assert trial.diary.count("on_validation_end") == 1


# --- what does not fit ---


class Wide(OneWeight):
    def __init__(self, context: Any) -> None:
        model = Weight()
        model.w = nn.Parameter(torch.ones(3))
        super().__init__(context, model=context.wrap_model(model))


class Two(OneWeight):
    def __init__(self, context: Any) -> None:
        super().__init__(context)
        context.wrap_model(Weight())


class Steps(OneWeight):
    def __init__(self, context: Any) -> None:
        super().__init__(context)
        context.wrap_lr_scheduler(ExponentialLR(self.optimizer, 0.5), LRScheduler.StepMode.STEP_EVERY_BATCH)


@pytest.mark.parametrize(
    ("kind", "says"),
    [(Wide, r"models\[0\].*size mismatch"), (Two, "holds 1 models.*wrapped 2"), (Steps, "holds 0 schedulers.*1")],
)
def test_another_model_than_was_saved_is_an_error_that_says_where(kind: type[OneWeight], says: str) -> None:
    fit(context=KEPT, max_length=Batch(2))
    with pytest.raises(StateMismatch, match=f"(?s){says}"):
        fit(kind, context=KEPT)


def test_a_checkpoint_that_is_no_trials_is_refused() -> None:
    with everstep.Checkpointer("kept") as checkpointer:
        checkpointer.save(3, {"model": Weight()}, wait=True)
    with refused("checkpoint-not-by-a-trainer", EverstepError):
        fit(context=KEPT)


# --- which are saved ---


def values(*given: float) -> dict[str, Any]:
    left = iter(given)
    return {"evaluate": lambda *_: {"value": next(left)}, "validation_size": 2}


def searching(metric: str, **more: Any) -> dict[str, Any]:
    return {"exp_conf": {"searcher": {"metric": metric, **more}}}


def saved(policy: str, context: dict[str, Any], *given: float) -> list[int]:
    fit(
        context=context,
        options=values(*given),
        max_length=Batch(len(given)),
        validation_period=Batch(1),
        checkpoint_policy=policy,
    )
    return [line["batches"] for line in reported("checkpoint")]


def test_the_best_is_saved_and_the_last() -> None:
    assert saved("best", searching("value"), 5.0, 4.0, 4.5, 4.0, 3.0, 7.0) == [1, 2, 5, 6]


def test_the_best_may_be_the_largest() -> None:
    assert saved("best", searching("value", smaller_is_better=False), 5.0, 4.0, 4.5, 6.0, 3.0) == [1, 4, 5]


def test_nan_is_never_the_best() -> None:
    assert saved("best", searching("value"), float("nan"), 4.0, float("nan"), 3.0, 7.0) == [2, 4, 5]


def test_the_best_of_an_unknown_metric_is_every_one() -> None:
    assert saved("best", {}, 5.0, 6.0, 7.0) == [1, 2, 3]


def test_all_or_none_after_a_validation() -> None:
    assert saved("all", searching("value"), 5.0, 6.0, 7.0) == [1, 2, 3]


def test_none_but_the_last() -> None:
    assert saved("none", searching("value"), 5.0, 4.0, 3.0) == [3]


def test_the_best_is_known_after_a_break() -> None:
    fit(context=KEPT | searching("value"), options=values(3.0), max_length=Batch(1))
    trial = fit(
        context=KEPT | searching("value"),
        options=values(4.0, 5.0, 2.0, 6.0),
        max_length=Batch(5),
        validation_period=Batch(1),
    )
    assert trial.diary.count("on_checkpoint_upload_end") == 2  # 2.0, and the last


def test_the_best_and_the_newest_are_kept() -> None:
    saved("all", KEPT | searching("value"), 3.0, 1.0, 4.0, 5.0, 6.0, 7.0)
    assert steps_in() == [2, 5, 6]


def test_how_many_are_kept_can_be_configured() -> None:
    storage = {"save_trial_latest": 1, "save_trial_best": 2}
    context = {"exp_conf": {"searcher": {"metric": "value"}, "checkpoint_storage": storage}}
    saved("all", KEPT | context, 3.0, 1.0, 4.0, 5.0, 6.0, 7.0)
    assert steps_in() == [1, 2, 6]


def test_as_many_are_kept_as_may_be_the_best_of_the_experiment() -> None:
    storage = {"save_trial_latest": 1, "save_trial_best": 0, "save_experiment_best": 2}
    context = {"exp_conf": {"searcher": {"metric": "value"}, "checkpoint_storage": storage}}
    saved("all", KEPT | context, 3.0, 1.0, 4.0, 5.0, 6.0, 7.0)
    assert steps_in() == [1, 2, 6]


def storages(folder: Path) -> list[Any]:
    """As people configure them: a shared folder, a bucket."""
    return [
        {"type": "shared_fs", "host_path": str(folder), "storage_path": "mine"},
        {"uri": f"memory://{folder.name}", "save_trial_latest": 9},
    ]


@pytest.mark.parametrize("which", [0, 1])
def test_each_run_has_a_place_of_its_own_below_the_configured_storage(tmp_path: Path, which: int) -> None:
    storage = storages(tmp_path)[which]

    def train(lr: float, length: int, name: str = "mine") -> list[float]:
        """Weights before each batch."""
        shutil.rmtree("runs", ignore_errors=True)  # as on a cluster, where each submission has a folder of its own
        context = {"hparams": {"lr": lr}, "exp_conf": {"name": name, "checkpoint_storage": storage}}
        return fit(context=context, options={"lr": lr}, max_length=Batch(length)).weights

    assert train(0.25, 2) == [1.0, 0.5]
    assert train(0.125, 2) == [1.0, 0.75], "other hyperparameters are another run"
    assert train(0.25, 2, name="other") == [1.0, 0.5], "another name is another run"
    assert train(0.25, 4) == [0.25, 0.125], "a greater length continues the run"
    assert train(0.25, 4) == [1.0, 0.5, 0.25, 0.125], "a finished run is not touched: the next one begins"
    assert train(0.25, 5) == [0.0625], "the newest run is continued"


def test_a_run_that_broke_off_goes_on_in_its_place_of_a_bucket(tmp_path: Path) -> None:
    def breaking(trial: OneWeight, batch: int) -> None:
        if batch == 2:
            raise ZeroDivisionError

    context = {"exp_conf": {"checkpoint_storage": f"memory://{tmp_path.name}"}}
    with pytest.raises(ZeroDivisionError):
        fit(context=context, options={"in_batch": breaking}, max_length=Batch(4))
    shutil.rmtree("runs")

    assert fit(context=context, max_length=Batch(4)).weights == [0.25, 0.125]


def test_a_place_of_the_script_is_taken_as_it_is_and_refused_to_other_hyperparameters() -> None:
    fit(context=KEPT | {"hparams": {"lr": 1}}, max_length=Batch(2))
    assert steps_in() == [2]

    with pytest.raises(UsageError, match="has checkpoints of a run with other hyperparameters: lr was 1, is 2") as told:
        fit(context=KEPT | {"hparams": {"lr": 2}}, max_length=Batch(4))
    assert "give each run its own place" in str(told.value)


def test_a_storage_that_is_none_is_refused() -> None:
    with refused("checkpoint-storage-unknown", UsageError):
        fit(context={"exp_conf": {"checkpoint_storage": {"type": "tape"}}})


def test_a_metric_that_is_not_reported_is_told_at_the_first_validation() -> None:
    with refused("searcher-metric-missing", UsageError):
        fit(
            context=searching("acc"),
            options={"evaluate": lambda w, batch: {"accuracy": 0.5, "loss": 1.0}},
            validation_period=Batch(1),
        )


# --- damage ---


def files_of(step: int) -> list[Path]:
    """All files of the checkpoint of a step."""
    with everstep.Checkpointer("kept") as checkpointer:
        (found,) = (each for each in checkpointer.list() if each.step == step)
    return sorted(path for path in (Path("kept") / found.key.folder).rglob("*") if path.is_file())


class Bomb:
    def __reduce__(self) -> Any:
        return os.mkdir, ("exploded",)


def replace_with_pickle(path: Path) -> None:
    path.write_bytes(pickle.dumps(Bomb()))


def replace_with_torchs(path: Path) -> None:
    torch.save({"models": [Bomb()]}, path)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x40
    path.write_bytes(content)


def remove(path: Path) -> None:
    path.unlink()


DAMAGE = [replace_with_pickle, replace_with_torchs, truncate, flip_a_byte, remove]


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_newest_checkpoint_is_passed_over_and_runs_nothing(damage: Any) -> None:
    fit(context=KEPT, max_length=Batch(2))
    fit(context=KEPT, max_length=Batch(4))
    number = len(files_of(4))
    assert number
    for index in range(number):
        damage(files_of(4)[index] if damage is not remove else files_of(4)[0])
    trial = fit(context=KEPT, max_length=Batch(5))

    assert trial.weights[0] == 2.0**-2
    assert not Path("exploded").exists()


@pytest.mark.parametrize("damage", DAMAGE[:-1])
@pytest.mark.parametrize("which", [0, -1])
def test_a_damaged_file_in_the_only_checkpoint_is_an_error_that_names_it(damage: Any, which: int) -> None:
    fit(context=KEPT, max_length=Batch(2))
    damage(files_of(2)[which])

    with pytest.raises(CheckpointBroken, match="no whole checkpoint in .*kept"):
        fit(context=KEPT)
    assert not Path("exploded").exists()


def test_a_damaged_checkpoint_that_was_asked_for_by_its_uuid_is_an_error() -> None:
    first = fit(context=KEPT, max_length=Batch(4), checkpoint_period=Batch(2))
    (uuid,) = first.diary.of("on_checkpoint_upload_end")[-1]
    for path in files_of(4):
        truncate(path)

    with pytest.raises((CheckpointBroken, NoCheckpoint)):
        fit(context=KEPT, latest_checkpoint=uuid)


@pytest.fixture
def is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The exit code says that a process could not save; this test needs other facts."""
    monkeypatch.setattr("everstep.checkpoint.failed_saves._ledgers", [])


@pytest.mark.usefixtures("is_forgotten")
def test_a_checkpoint_that_cannot_be_written_does_not_end_the_training() -> None:
    class Full(OneWeight):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            if batch_idx == 1:
                Path("kept").write_text("a file where a folder should be")
            return super().train_batch(batch, epoch_idx, batch_idx)

    trial = fit(Full, context=KEPT, checkpoint_period=Batch(2))
    assert trial.w == 2.0**-8
    assert trial.diary.count("on_checkpoint_upload_end") == 0


@pytest.mark.usefixtures("is_forgotten")
def test_a_last_word_that_cannot_be_written_does_not_hide_the_exception() -> None:
    class Broken(OneWeight):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            if batch_idx == 3:
                Path("kept").write_text("a file where a folder should be")
                raise ZeroDivisionError
            return super().train_batch(batch, epoch_idx, batch_idx)

    with pytest.raises(ZeroDivisionError):
        fit(Broken, context=KEPT)
    assert reported("failure")[0]["error"].startswith("ZeroDivisionError")
