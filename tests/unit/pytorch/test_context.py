"""What a trial can ask of its context, and what it is refused."""

from __future__ import annotations

import logging
from collections import namedtuple
from typing import Any

import numpy
import pytest
import torch
from torch.amp import GradScaler

from everstep import pytorch
from everstep.errors import UsageError
from everstep.pytorch import Batch, PyTorchTrial, Trainer
from everstep.pytorch.batches import ToDevice, batch_length
from lab.one_weight import OneWeight, Weight, fit, trainer
from lab.refused import refused

GETTERS = ("current_train_batch", "current_train_epoch", "is_epoch_start", "is_epoch_end", "get_initial_batch")


def test_where_training_is_can_be_asked_in_every_batch() -> None:
    seen = []

    def ask(trial: OneWeight, batch: int) -> None:
        seen.append(tuple(getattr(trial.context, name)() for name in GETTERS))

    fit(options={"in_batch": ask, "size": 6}, max_length=Batch(7))  # 3 batches an epoch
    assert seen == [(n, n // 3, n % 3 == 0, n % 3 == 2, 0) for n in range(7)]


def test_where_training_is_is_the_same_in_all_micro_batches_of_a_batch() -> None:
    seen = []

    def ask(trial: OneWeight, batch: int) -> None:
        seen.append((trial.context.current_train_batch(), trial.context.is_epoch_end()))

    fit(
        options={"in_batch": ask, "size": 10}, context={"micro_batches": 4}, max_length=Batch(2)
    )  # batches of 8 and 2 samples
    assert set(seen) == {(0, False), (1, True)}


def test_where_training_began_after_a_checkpoint() -> None:
    seen = []
    options = {"in_batch": lambda trial, batch: seen.append((batch, trial.context.get_initial_batch()))}
    fit(context={"checkpoints": "kept"}, max_length=Batch(2))
    fit(context={"checkpoints": "kept"}, options=options, max_length=Batch(4))
    assert seen == [(2, 2), (3, 2)]


def test_the_backend_of_init_takes_precedence_over_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    options = {"in_batch": lambda trial, batch: seen.append(trial.context.engine.work.backend_wish), "size": 2}
    monkeypatch.setenv("EVERSTEP_BACKEND", "nccl")
    for context in ({"backend": "gloo"}, {}):
        fit(options=options, context=context, max_length=Batch(1))
    assert seen == ["gloo", "nccl"]


def test_before_training_has_begun_there_is_no_answer() -> None:
    with trainer() as (trial, _):
        for name in (*GETTERS, "get_tensorboard_writer"):
            with pytest.raises(UsageError, match=name):
                getattr(trial.context, name)()


def test_hyperparameters() -> None:
    hparams = {"lr": 0.1, "global_batch_size": 32}
    with pytorch.init(
        hparams=hparams, exp_conf={"name": "mine", "data": {"folder": "here"}}, micro_batches=4
    ) as context:
        assert context.get_hparams() == hparams
        assert context.get_hparam("lr") == 0.1
        assert context.get_experiment_config()["name"] == "mine"
        assert context.get_data_config() == {"folder": "here"}
        assert (context.get_global_batch_size(), context.get_per_slot_batch_size()) == (32, 8)
        with pytest.raises(UsageError, match=r"(?s)no hyperparameter 'depth'.*global_batch_size.*lr"):
            context.get_hparam("depth")


def test_hyperparameters_of_the_experiments_configuration() -> None:
    with pytorch.init(exp_conf={"hyperparameters": {"lr": 0.5}, "reproducibility": {"experiment_seed": 3}}) as context:
        assert context.get_hparam("lr") == 0.5
        assert context.get_trial_seed() == 3


@pytest.mark.parametrize(("size", "micro_batches", "near"), [(30, 4, "28 or 32"), (3, 4, "use 4")])
def test_a_global_batch_that_does_not_split_names_those_that_do(size: int, micro_batches: int, near: str) -> None:
    with (
        pytorch.init(hparams={"global_batch_size": size}, micro_batches=micro_batches) as context,
        refused("global-batch-does-not-divide", UsageError, match=near),
    ):
        context.get_per_slot_batch_size()


@pytest.mark.parametrize("size", [0, -4, True, "32", 1.5])
def test_a_global_batch_size_is_a_whole_number(size: Any) -> None:
    with pytorch.init(hparams={"global_batch_size": size}) as context, pytest.raises(UsageError, match=repr(size)):
        context.get_global_batch_size()


def test_wrapping_gives_back_the_same_object() -> None:
    with pytorch.init() as context:
        model, scaler = Weight(), GradScaler("cpu")
        assert context.wrap_model(model, find_unused_parameters=True) is model
        assert context.wrap_model(model) is model and context.models == [model]
        optimizer = torch.optim.SGD(model.parameters())
        assert context.wrap_optimizer(optimizer) is optimizer
        assert context.wrap_optimizer(optimizer) is optimizer and len(context.optimizers) == 1
        assert context.wrap_scaler(scaler) is scaler


@pytest.mark.parametrize(
    ("wrap", "code"),
    [
        (lambda context: context.wrap_model(3), "not-a-model"),
        (lambda context: context.wrap_model(Weight(), find_unused=True), "ddp-arguments-unknown"),
        (lambda context: context.wrap_optimizer(Weight()), "not-an-optimizer"),
        (
            lambda context: context.wrap_optimizer(torch.optim.SGD(Weight().parameters()), backward_passes_per_step=2),
            "horovod-arguments",
        ),
        (lambda context: [context.wrap_scaler(GradScaler("cpu")) for _ in range(2)], "second-scaler"),
        (lambda context: context.configure_apex_amp(None, None), "apex"),
        (lambda context: context.wrap_reducer(3), "not-a-reducer"),
    ],
)
def test_what_cannot_be_wrapped_is_refused_by_name(wrap: Any, code: str) -> None:
    with pytorch.init() as context, refused(code, UsageError):
        wrap(context)


def test_wrapping_after_training_has_begun_is_refused() -> None:
    def late(trial: OneWeight, batch: int) -> None:
        trial.context.wrap_model(Weight())

    with refused("wrapped-after-training-began", UsageError):
        fit(options={"in_batch": late})


def test_a_trial_without_a_model_or_an_optimizer_is_named() -> None:
    class NoModel(OneWeight):
        def __init__(self, context: Any) -> None:
            pass

    class NoOptimizer(OneWeight):
        def __init__(self, context: Any) -> None:
            context.wrap_model(Weight())

    with refused("nothing-wrapped", UsageError):
        fit(NoModel)
    with refused("nothing-wrapped", UsageError):
        fit(NoOptimizer)


def test_what_is_no_trial_or_context_is_refused() -> None:
    class Half(PyTorchTrial):
        pass

    with pytorch.init() as context:
        with refused("not-a-trial", UsageError):
            Trainer(3, context)  # type: ignore[arg-type]
        with refused("trial-method-missing", UsageError):
            Trainer(Half(context), context)
        with refused("not-a-context", UsageError):
            Trainer(OneWeight(context), None)  # type: ignore[arg-type]


def test_one_process_is_a_world_of_one() -> None:
    with pytorch.init() as context:
        distributed = context.distributed
        assert (distributed.rank, distributed.size, distributed.local_rank, distributed.local_size) == (0, 1, 0, 1)
        assert distributed.allgather({"a": 1}) == [{"a": 1}]
        assert distributed.broadcast(3) == 3


def test_contexts_follow_one_another_in_a_process() -> None:
    for _ in range(2):
        assert fit(context={"checkpoints": None}, max_length=Batch(1), test_mode=True).weights == [1.0]


def test_no_tensorboard_files_are_written_if_not_wanted(tmp_path: Any) -> None:
    fit(max_length=Batch(1))
    assert not list(tmp_path.rglob("*tfevents*"))

    with trainer(context={"enable_tensorboard_logging": True}) as (trial, made):
        trial.context.set_enable_tensorboard_logging(False)
        made.fit(max_length=Batch(2))
    assert not list(tmp_path.rglob("*tfevents*"))


# --- batches ---


def test_a_batch_is_moved_whatever_it_is_built_of(caplog: pytest.LogCaptureFixture) -> None:
    pair = namedtuple("pair", ["left", "right"])
    move = ToDevice(torch.device("meta"))
    with caplog.at_level(logging.WARNING, "everstep"):
        moved = move({"a": [torch.ones(1), (torch.ones(2), "word")], "b": pair(torch.ones(3), None), "c": object()})
        move([object(), 3])

    assert moved["a"][0].is_meta and moved["a"][1][0].is_meta and moved["a"][1][1] == "word"
    assert type(moved["b"]) is pair and moved["b"].left.is_meta
    assert caplog.text.count("not moved") == 1, "each kind is named once"


def test_batches_are_left_as_they_are_if_asked() -> None:
    class Raw(OneWeight):
        def __init__(self, context: Any) -> None:
            super().__init__(context)
            context.experimental.disable_auto_to_device()
            context.to_device = None

    assert fit(Raw, max_length=Batch(1)).weights == [1.0]


@pytest.mark.parametrize(
    ("batch", "length"),
    [
        (torch.zeros(3, 2), 3),
        (numpy.zeros(4), 4),
        ([torch.zeros(2), torch.zeros(5)], 2),
        ((torch.zeros(2),), 2),
        ({"x": [torch.zeros(6)]}, 6),
        ([1, 2, 3], 3),
        (["a", "b"], 2),
    ],
)
def test_the_length_of_a_batch(batch: Any, length: int) -> None:
    assert batch_length(batch) == length


@pytest.mark.parametrize("batch", [torch.tensor(3), [], {}, (), 3, None, object()])
def test_a_batch_without_a_length_says_what_to_override(batch: Any) -> None:
    with refused(("batch-length-unknown", "batch-is-a-single-number"), UsageError):
        batch_length(batch)
