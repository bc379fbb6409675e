"""The native door with one worker: what it computes, and what it says to wrong use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

from everstep.data.loader import DataLoader
from everstep.engine.agreed_values import Agreed
from everstep.engine.buckets import lay_out
from everstep.engine.leadership import Leadership
from everstep.engine.settings import Settings
from everstep.engine.step import Engine
from everstep.engine.world import World
from everstep.errors import UsageError
from everstep.native import DistributedDataParallel, ElasticTrainer
from lab.alone import make_engine, make_trainer


@pytest.mark.parametrize("reduce", ["exact", "fast"])
def test_the_gradient_is_the_mean_over_all_samples_also_of_uneven_and_empty_micro_batches(reduce: str) -> None:
    torch.manual_seed(0)
    model = nn.Linear(5, 3).double()
    samples = torch.randn(9, 5).double()
    parts = [samples[:2], samples[2:7], samples[:0], samples[7:]]
    model(samples).square().sum(dim=1).mean().backward()
    wanted = [p.grad.clone() for p in model.parameters()]
    trainer = make_trainer(model, micro_batches=4, reduce=reduce)
    optimizer = trainer.prepare(torch.optim.SGD(model.parameters(), lr=0.0))

    for micro_batch in trainer.micro_batches(steps=1):
        part = parts[micro_batch.index]
        with trainer.step(weight=len(part)):
            stand_in = part if len(part) else samples[:1]
            model(stand_in).square().sum(dim=1).mean().backward()
            optimizer.step()

    for parameter, gradient in zip(model.parameters(), wanted, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


@pytest.mark.parametrize("reduce", ["exact", "fast"])
def test_float16_gradients_do_not_overflow_by_their_weight(reduce: str) -> None:
    model = nn.Linear(3, 1, bias=False).half()
    trainer = make_trainer(model, micro_batches=3, reduce=reduce)
    optimizer = trainer.prepare(torch.optim.SGD(model.parameters(), lr=0.0))
    for micro_batch in trainer.micro_batches(steps=1):
        with trainer.step(weight=64):
            (
                3000.0 * model(torch.full((1, 3), 1.0 + micro_batch.index).half())
            ).sum().backward()  # 64 times that is infinite
            optimizer.step()

    assert model.weight.grad.dtype == torch.float16
    assert model.weight.grad.tolist() == [[6000.0] * 3]


def test_a_parameter_that_nobody_used_has_no_gradient() -> None:
    model = nn.ModuleDict({"used": nn.Linear(2, 2), "idle": nn.Linear(2, 2)})
    trainer = make_trainer(model, micro_batches=2)
    optimizer = trainer.prepare(torch.optim.Adam(model.parameters()))
    for _ in trainer.micro_batches(steps=2):
        with trainer.step():
            model["used"](torch.ones(1, 2)).sum().backward()
            optimizer.step()

    assert model["idle"].weight.grad is None
    assert model["used"].weight.grad is not None


def test_no_sync_adds_up_within_a_micro_batch() -> None:
    model = DistributedDataParallel(nn.Linear(2, 1, bias=False))
    trainer = make_trainer(model)
    optimizer = trainer.prepare(torch.optim.SGD(model.parameters(), lr=0.0))
    for _ in trainer.micro_batches(steps=1):
        with trainer.step():
            with model.no_sync():
                model(torch.ones(1, 2)).sum().backward()
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()

    assert model.module.weight.grad.tolist() == [[2.0, 2.0]]
    assert list(model.state_dict()) == ["module.weight"]


def test_an_exception_in_the_body_rises_and_complete_micro_batches_are_kept() -> None:
    model = nn.Linear(2, 1)
    trainer = make_trainer(model, micro_batches=3)
    optimizer = trainer.prepare(torch.optim.SGD(model.parameters(), lr=0.1))
    seen = []
    for micro_batch in trainer.micro_batches(steps=1):
        seen.append(micro_batch.index)
        try:
            with trainer.step():
                model(torch.ones(1, 2)).sum().backward()
                if len(seen) == 2:
                    raise ValueError("spilt coffee")
                optimizer.step()
        except ValueError:
            assert len(seen) == 2

    assert seen == [0, 1, 2]  # its gradients were complete when the body broke off
    assert trainer.num_steps == 1


def test_a_micro_batch_that_is_computed_again_starts_from_the_buffers_of_the_step() -> None:
    model = nn.BatchNorm1d(1, momentum=0.5)
    trainer = make_trainer(model, micro_batches=2)
    optimizer = trainer.prepare(torch.optim.SGD(model.parameters(), lr=0.1))
    seen = []
    for micro_batch in trainer.micro_batches(steps=1):
        seen.append(micro_batch.index)
        try:
            with trainer.step():
                loss = model(torch.tensor([[1.0], [3.0]])).sum()
                if len(seen) == 1:
                    raise ValueError("spilt coffee")
                loss.backward()
                optimizer.step()
        except ValueError:
            assert model.running_mean == 1.0  # half of the batch's, and not to be counted

    assert seen == [0, 0, 1]
    assert (model.running_mean, model.num_batches_tracked) == (1.0, 1)


def test_sparse_gradients_are_refused() -> None:
    model = nn.Embedding(4, 2, sparse=True)
    trainer = make_trainer(model)
    optimizer = trainer.prepare(torch.optim.SGD(model.parameters(), lr=0.1))
    next(iter(trainer.micro_batches(steps=1)))
    with pytest.raises(UsageError, match="sparse gradients") as caught, trainer.step():
        model(torch.tensor([1])).sum().backward()
        optimizer.step()
    assert caught.value.hint == "use sparse=False"


def test_sparse_parameters_are_refused() -> None:
    model = nn.Module()
    model.weight = nn.Parameter(torch.eye(2).to_sparse())
    with pytest.raises(UsageError, match="parameter weight is sparse"):
        make_trainer(model).engine.next_micro_batch()


class Counting(nn.Module):
    """Counts its batches in a buffer, and may put another tensor there each time."""

    def __init__(self, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.linear, self.change = nn.Linear(2, 1), change
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.seen = self.change(self.seen)
        return self.linear(inputs)


def train_counting(model: nn.Module, *weights: float, steps: int = 3) -> None:
    trainer = make_trainer(model, micro_batches=len(weights))
    optimizer = trainer.prepare(torch.optim.SGD(model.parameters(), lr=0.1))
    for micro_batch in trainer.micro_batches(steps=steps):
        with trainer.step(weights[micro_batch.index]):
            model(torch.full((2, 2), 1.0 + micro_batch.index)).sum().backward()
            optimizer.step()


@pytest.mark.parametrize("change", [lambda seen: seen + 1, lambda seen: seen.add_(1)])
def test_a_buffer_that_is_another_tensor_each_time_follows_the_steps_like_any_other(
    change: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    model = Counting(change)
    train_counting(model, 1.0, 1.0, 1.0, 1.0)
    assert model.seen.item() == 3


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda seen: seen.double(), r"buffer seen was float32 \[1\] at the first step and is float64 \[1\] now"),
        (lambda seen: torch.cat([seen, seen]), r"is float32 \[2\] now"),
        (lambda seen: None, "is gone"),
    ],
)
def test_a_buffer_that_changes_its_shape_or_type_is_refused(change: Callable[..., torch.Tensor], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        train_counting(Counting(change), 1.0, 1.0)


def test_buffers_are_those_of_the_first_micro_batch_with_weight() -> None:
    model = nn.Sequential(nn.BatchNorm1d(2, momentum=1.0), nn.Linear(2, 1))
    train_counting(model, 0.0, 0.0, 1.0, 1.0)
    assert model[0].running_mean.tolist() == [3.0, 3.0]
    assert model[0].num_batches_tracked == 3


@pytest.mark.parametrize("counts", [True, False])
def test_a_step_without_weight_does_not_move_buffers(counts: bool) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    before = {name: each.clone() for name, each in model.named_buffers()}
    engine = make_engine()
    engine.work.configure(Settings(micro_batches_per_worker=1, reduce="fast", counts_empty_steps=counts))
    engine.registry.add("model", model)
    for _ in range(3):
        engine.begin_micro_batch(engine.next_micro_batch(), 0.0)
        model(torch.randn(8, 4) + 100.0).sum().backward()
        engine.update(lambda: None, is_final=True)
        engine.end_micro_batch()
        engine.after_commit()
    assert all(torch.equal(before[name], each) for name, each in model.named_buffers())


def test_after_a_step_that_did_not_count_a_newcomer_asks_with_all_others_and_by_the_same_names() -> None:
    def passed_step(engine: Engine) -> None:
        engine.begin_micro_batch(engine.next_micro_batch(), 0.0)
        model(torch.ones(1, 1)).sum().backward()
        engine.update(lambda: None, is_final=True)
        engine.end_micro_batch()
        engine.after_commit()

    model, engine = nn.Linear(1, 1), make_engine()
    engine.work.configure(Settings(micro_batches_per_worker=1, reduce="fast", counts_empty_steps=False))
    engine.registry.add("model", model)
    passed_step(engine)
    assert engine.gather("hello") == ["hello"]
    work = engine.work
    ours = work.hello(worker="w0", job="j", settled=1, is_agreeing=False, neighbors=[], inlet=[])
    newcomer = replace(ours, worker="w1", settled=0, answers={}, num_passed=0)
    leadership, names = Leadership(leader=0, receivers=(1,), reason=""), []
    for rank in range(2):  # as the one that was there, and as the newcomer
        work.agreed = Agreed(num_passed=ours.num_passed, num_asked=1) if rank == 0 else Agreed()
        work.forget()
        work.num_micro_batches = 2
        work.settle([ours, newcomer], leadership, World(generation=2, rank=rank, size=2))
        assert work.agreed.ranks == [0]
        work.forget()
        work.num_micro_batches = 1  # the rest of the step is one worker's: it is only about what is asked after it
        work.make_plan(World(generation=2, rank=0, size=1))
        passed_step(engine)
        assert work.agreed.ranks is None
        names.append(work.agreed.name())
    assert names[0] == names[1]


class Segments(nn.Module):
    """First, middle and last layer; a frozen head. Some of them are checkpointed the reentrant way."""

    def __init__(self, *checkpointed: str, shared: bool = False) -> None:
        super().__init__()
        self.first, self.middle, self.last, self.head = (nn.Linear(4, 4) for _ in range(4))
        self.head.requires_grad_(False)
        self.checkpointed = checkpointed
        self.order = ["first", "middle", "middle", "last"] if shared else ["first", "middle", "last"]

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        x = inputs.requires_grad_()
        for name in self.order:
            part = getattr(self, name)
            x = checkpoint(part, x, use_reentrant=True) if name in self.checkpointed else part(x)
        return self.head(x)


def train_segments(*checkpointed: str, shared: bool = False) -> list[list[float]]:
    """The clipped gradients of the last step."""
    torch.manual_seed(0)
    model = Segments(*checkpointed, shared=shared)
    trainer = make_trainer(model, micro_batches=2)
    optimizer = trainer.prepare(torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1))
    for micro_batch in trainer.micro_batches(steps=2):
        with trainer.step():
            model(torch.full((2, 4), 1.0 + micro_batch.index)).sum().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
    return [p.grad.flatten().tolist() for p in model.parameters() if p.requires_grad]


@pytest.mark.parametrize("checkpointed", [("middle",), ("middle", "last"), ("first", "middle")])
def test_reentrant_checkpointing_works_where_one_gradient_is_from_outside_of_it(checkpointed: tuple[str, ...]) -> None:
    assert train_segments(*checkpointed) == train_segments()


def test_reentrant_checkpointing_of_all_that_is_trained_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="reentrant activation checkpointing") as caught:
        train_segments("first", "middle", "last")
    assert "use_reentrant=False" in str(caught.value.hint)


def test_a_parameter_of_two_reentrant_segments_is_refused_by_name_or_summed() -> None:
    together, apart = train_segments("middle", shared=True), train_segments(shared=True)  # all are in one bucket
    assert together == [pytest.approx(each) for each in apart]
    with pytest.MonkeyPatch.context() as patch:  # to a bucket for each
        patch.setattr("everstep.engine.step_work.lay_out", lambda parameters: lay_out(parameters, bucket_bytes=8))
        with pytest.raises(UsageError, match="got a second gradient in one backward"):
            train_segments("middle", shared=True)


def backward_outside(model: nn.Module, trainer: ElasticTrainer, optimizer: torch.optim.Optimizer) -> None:
    next(iter(trainer.micro_batches(steps=1)))
    model(torch.ones(1, 2)).sum().backward()


def second_backward(model: nn.Module, trainer: ElasticTrainer, optimizer: torch.optim.Optimizer) -> None:
    for _ in trainer.micro_batches(steps=1):
        with trainer.step():
            model(torch.ones(1, 2)).sum().backward()
            model(torch.ones(1, 2)).sum().backward()


def step_outside(model: nn.Module, trainer: ElasticTrainer, optimizer: torch.optim.Optimizer) -> None:
    optimizer.step()


def step_forgotten(model: nn.Module, trainer: ElasticTrainer, optimizer: torch.optim.Optimizer) -> None:
    for _ in trainer.micro_batches(steps=1):
        with trainer.step():
            model(torch.ones(1, 2)).sum().backward()


def step_in_step(model: nn.Module, trainer: ElasticTrainer, optimizer: torch.optim.Optimizer) -> None:
    for _ in trainer.micro_batches(steps=1):
        with trainer.step(), trainer.step():
            pass


def negative_weight(model: nn.Module, trainer: ElasticTrainer, optimizer: torch.optim.Optimizer) -> None:
    for _ in trainer.micro_batches(steps=1):
        with trainer.step(weight=-1):
            pass


@pytest.mark.parametrize(
    ("misuse", "words"),
    [
        (backward_outside, "outside of a step"),
        (second_backward, "second backward"),
        (step_outside, "optimizer.step\\(\\) outside"),
        (step_forgotten, "without optimizer.step"),
        (step_in_step, "a step inside a step"),
        (negative_weight, "weight=-1"),
    ],
)
def test_wrong_use_gets_an_error_and_a_hint(misuse: Callable[..., None], words: str) -> None:
    model = nn.Linear(2, 1)
    trainer = make_trainer(model)
    optimizer = trainer.prepare(torch.optim.SGD(model.parameters(), lr=0.1))

    with pytest.raises(UsageError, match=words) as caught:
        misuse(model, trainer, optimizer)

    assert caught.value.hint


def test_wrong_arguments_get_an_error() -> None:
    model = nn.Linear(2, 1)
    with pytest.raises(UsageError, match="micro_batches=0"):
        make_trainer(model, micro_batches=0)
    with pytest.raises(UsageError, match="reduce='slow'"):
        make_trainer(model, reduce="slow")
    with pytest.raises(UsageError, match="before prepare"), make_trainer(model).step():
        pass
    with pytest.raises(UsageError, match="not bound to a trainer"):
        DistributedDataParallel(model)(torch.ones(1, 2))
    with pytest.raises(UsageError, match="no parameter"):
        make_trainer(nn.ReLU()).engine.next_micro_batch()


def test_what_the_script_changes_in_buffers_between_two_steps_stays() -> None:
    model = nn.Linear(2, 1)
    trainer = make_trainer(model, micro_batches=2)
    average = trainer.register("average", AveragedModel(model))
    optimizer = trainer.prepare(torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in trainer.micro_batches(steps=3):
        with trainer.step():
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            if trainer.is_last_micro_batch:
                average.update_parameters(model)

    assert average.n_averaged.item() == 3
    assert not torch.equal(average.module.weight, model.weight)


def train_unregistered(model: nn.Module, head: nn.Module) -> None:
    trainer = make_trainer(model)
    optimizer = trainer.prepare(torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.1))
    for _ in trainer.micro_batches(steps=2):
        with trainer.step():
            head(model(torch.ones(1, 2))).sum().backward()
            optimizer.step()
        model.requires_grad_()


def test_a_gradient_that_no_other_worker_has_a_part_in_is_refused() -> None:
    with pytest.raises(UsageError, match="2 of the optimizer's parameters, one of shape \\[1, 3\\] first"):
        train_unregistered(nn.Linear(2, 3), nn.Linear(3, 1))
    thawed = nn.Sequential(nn.Linear(2, 3).requires_grad_(False), nn.Linear(3, 1))
    with pytest.raises(UsageError, match="2 of the optimizer's parameters, one of shape \\[3, 2\\] first"):
        train_unregistered(thawed, nn.Identity())


def test_micro_batches_of_an_epoch_that_was_left_early_are_not_those_of_the_next() -> None:
    model = nn.Linear(1, 1)
    loader = DataLoader(TensorDataset(torch.arange(8)), batch_size=1)
    trainer = ElasticTrainer(model, loader, micro_batches=4, engine=make_engine())
    optimizer = trainer.prepare(torch.optim.SGD(model.parameters(), lr=0.1))
    seen: dict[int, list[int]] = {}
    for epoch in trainer.epochs(2):
        for (sample,) in loader:
            with trainer.step():
                model(sample.view(1, 1).float()).sum().backward()
                optimizer.step()
            seen.setdefault(epoch, []).append(int(sample))
            if epoch == 0 and len(seen[0]) == 6:
                break

    assert seen == {0: list(range(6)), 1: list(range(8))}


def test_a_value_is_agreed_on_between_steps_and_not_amid_one() -> None:
    model = nn.Linear(1, 1)
    loader = DataLoader(TensorDataset(torch.arange(8)), batch_size=1)
    trainer = ElasticTrainer(model, loader, micro_batches=2, engine=(engine := make_engine()))
    optimizer = trainer.prepare(torch.optim.SGD(model.parameters(), lr=0.1))
    for (sample,) in loader:
        with pytest.raises(UsageError, match="in the middle of step"):
            engine.reduce(1.0, 1.0)
        before = trainer.num_steps
        with trainer.step():
            with pytest.raises(UsageError, match="in the middle of step"):
                engine.reduce(1.0, 1.0)
            model(sample.view(1, 1).float()).sum().backward()
            optimizer.step()
        if trainer.num_steps > before:
            assert engine.reduce(2.0, 1.0) == 2.0
        else:
            with pytest.raises(UsageError, match="in the middle of step"):
                engine.reduce(1.0, 1.0)
        if trainer.num_steps == 3:
            break
    assert engine.reduce(3.0, 1.0) == 3.0
