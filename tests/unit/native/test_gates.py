"""Optimizers, schedulers and scalers act once per global batch, on the mean over all micro-batches, at the right
moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import LambdaLR, LinearLR, ReduceLROnPlateau, SequentialLR, StepLR

import everstep
from everstep.errors import UsageError
from lab.alone import make_trainer
from lab.samples import Numbers


class Slope(nn.Module):
    """The gradient of `weight` is the sample's own value: of a batch, the mean."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self, samples: Tensor) -> Tensor:
        return (self.weight * samples).mean()


# --- the mean ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reduce", ["exact", "fast"])
@pytest.mark.parametrize("micro_batches", range(1, 9))
def test_a_step_is_taken_by_the_mean_over_the_samples_of_the_global_batch(micro_batches: int, reduce: str) -> None:
    model, size = Slope(), 45
    loader = everstep.DataLoader(Numbers(size), batch_size=3)
    trainer = make_trainer(model, loader, micro_batches, reduce=reduce)
    optimizer = trainer.prepare(SGD(model.parameters(), lr=1.0))
    means = []
    for samples in loader:
        with trainer.step():
            model(samples).backward()
            optimizer.step()
            optimizer.zero_grad()
        if trainer.num_steps > len(means):
            means.append(-model.weight.item() - sum(means))

    expected = [range(start, min(start + 3 * micro_batches, size)) for start in range(0, size, 3 * micro_batches)]
    assert means == pytest.approx([sum(each) / len(each) for each in expected])


def test_the_weight_of_a_micro_batch_can_be_the_users_own() -> None:
    model = Slope()
    loader = everstep.DataLoader(Numbers(4), batch_size=2)
    trainer = make_trainer(model, loader, micro_batches=2)
    optimizer = trainer.prepare(SGD(model.parameters(), lr=1.0))
    for samples in loader:
        with trainer.step(weight=float(samples.sum())):  # 1 and 5; means 0.5 and 2.5
            model(samples).backward()
            optimizer.step()
    assert -model.weight.item() == pytest.approx((1 * 0.5 + 5 * 2.5) / 6)


def test_clipping_sees_the_full_gradient_and_only_that_counts() -> None:
    model = Slope()
    loader = everstep.DataLoader(Numbers(6), batch_size=2)
    trainer = make_trainer(model, loader, micro_batches=3)
    optimizer = trainer.prepare(SGD(model.parameters(), lr=1.0))
    norms = []
    for samples in loader:
        with trainer.step():
            model(samples).backward()
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
            optimizer.step()
    assert norms == [0.0, 0.0, 2.5]  # between micro-batches there is no gradient to be seen
    assert model.weight.item() == pytest.approx(-1.0)


# --- several of them --------------------------------------------------------------------------------------


def shapes(first: Any, second: Any, scheduler: Any, scaler: Any) -> list[tuple[Any, ...]]:
    return [
        (first, scheduler),
        (first, scheduler, scaler),
        (scaler, scheduler, first),
        (first, second, scheduler),
        ([first, second], (scheduler,), scaler),
        ([first, scheduler, scaler], second),
    ]


@pytest.mark.parametrize("number", range(6))
def test_prepare_takes_things_in_any_order_and_gives_them_back_in_the_same(number: int) -> None:
    model = nn.Linear(2, 1)
    first, second = SGD([model.weight], lr=0.1), SGD([model.bias], lr=0.1)
    scheduler, scaler = StepLR(first, 1), torch.amp.GradScaler("cpu")
    things = shapes(first, second, scheduler, scaler)[number]
    trainer = make_trainer(model)

    got = trainer.prepare(*things)

    assert all(one is other for one, other in zip(got, things, strict=True))
    names = set(trainer.engine.registry.state()) - {"model", "logged"}
    flat = [each for thing in things for each in (thing if isinstance(thing, list | tuple) else [thing])]
    assert len(names) == len(flat)
    assert isinstance(scheduler, StepLR) and type(scheduler).__name__ == "StepLR"


def test_one_thing_alone_comes_back_as_itself() -> None:
    model = nn.Linear(2, 1)
    trainer, optimizer = make_trainer(model), SGD(model.parameters(), lr=0.1)
    assert trainer.prepare(optimizer) is optimizer
    pair = [StepLR(optimizer, 1), StepLR(optimizer, 2)]
    assert trainer.prepare(pair) is pair


def test_two_optimizers_side_by_side_are_two_optimizers() -> None:
    model = nn.ModuleDict({"one": Slope(), "two": Slope()})
    loader = everstep.DataLoader(Numbers(4), batch_size=2)
    trainer = make_trainer(model, loader, micro_batches=2)
    first, second = trainer.prepare(*(SGD(model[name].parameters(), lr=1.0) for name in ("one", "two")))
    for samples in loader:
        with trainer.step():
            (model["one"](samples) + model["two"](samples)).backward()
            first.step()
            second.step()
    assert (trainer.num_steps, model["one"].weight.item(), model["two"].weight.item()) == (1, -1.5, -1.5)


def test_the_last_of_several_optimizers_commits() -> None:
    model = nn.ModuleDict({"one": Slope(), "two": Slope()})
    loader = everstep.DataLoader(Numbers(12), batch_size=2)
    trainer = make_trainer(model, loader, micro_batches=2)
    first, second = trainer.prepare([SGD(model[name].parameters(), lr=1.0) for name in ("one", "two")])
    steps = []
    for samples in loader:
        with trainer.step():
            (model["one"](samples) + 2 * model["two"](samples)).backward()
            first.step()
            before = trainer.num_steps
            second.step()
            steps.append((before, trainer.num_steps))
    assert steps == [(0, 0), (0, 1), (1, 1), (1, 2), (2, 2), (2, 3)]
    assert model["two"].weight.item() == 2 * model["one"].weight.item() == -2 * (1.5 + 5.5 + 9.5)


def test_a_step_in_which_only_one_of_two_optimizers_acts_is_a_step() -> None:
    model = nn.ModuleDict({"one": Slope(), "two": Slope()})
    loader = everstep.DataLoader(Numbers(8), batch_size=2)
    trainer = make_trainer(model, loader, micro_batches=2)
    first, second = trainer.prepare([SGD(model[name].parameters(), lr=1.0) for name in ("one", "two")])
    for samples in loader:
        with trainer.step():
            (model["one"](samples) + model["two"](samples)).backward()
            first.step()
            if trainer.num_steps % 2 == 1:
                second.step()
    assert trainer.num_steps == 2
    assert (model["one"].weight.item(), model["two"].weight.item()) == (-1.5 - 5.5, -5.5)


# --- schedulers -------------------------------------------------------------------------------------------


def train(
    schedule: Callable[[torch.optim.Optimizer], Any],
    *,
    is_per_epoch: bool,
    epochs: int = 3,
    micro_batches: int = 2,
    is_prepared: bool = True,
) -> tuple[list[float], Any]:
    """The learning rate of each step, 4 to an epoch."""
    model = Slope()
    loader = everstep.DataLoader(Numbers(8 * micro_batches), batch_size=2)
    trainer = make_trainer(model, loader, micro_batches)
    optimizer = SGD(model.parameters(), lr=1.0)
    scheduler = schedule(optimizer)
    trainer.prepare(optimizer, *([scheduler] if is_prepared else []))
    rates = []
    for _ in trainer.epochs(epochs):
        for samples in loader:
            with trainer.step():
                model(samples).backward()
                rate, before = optimizer.param_groups[0]["lr"], trainer.num_steps
                optimizer.step()
                if not is_per_epoch:
                    scheduler.step()
            if trainer.num_steps > before:
                rates.append(rate)
        if is_per_epoch:
            scheduler.step()
    return rates, scheduler


@pytest.mark.filterwarnings("error")  # torch warns of a scheduler that steps before its optimizer
@pytest.mark.parametrize("micro_batches", [1, 4])
def test_a_scheduler_per_step_steps_once_per_global_batch(micro_batches: int) -> None:
    rates, scheduler = train(
        lambda o: LambdaLR(o, lambda n: 1 / (1 + n)), is_per_epoch=False, micro_batches=micro_batches
    )
    assert rates == [1 / (1 + step) for step in range(12)]
    assert scheduler.last_epoch == 12


@pytest.mark.parametrize("is_per_epoch", [False, True])
@pytest.mark.parametrize(
    "schedule",
    [
        lambda o: StepLR(o, 2, 0.5),
        lambda o: SequentialLR(o, [LinearLR(o, total_iters=2), StepLR(o, 2, 0.5)], milestones=[3]),
    ],
)
def test_a_scheduler_that_was_not_prepared_is_adopted(schedule: Callable[..., Any], is_per_epoch: bool) -> None:
    adopted, _ = train(schedule, is_per_epoch=is_per_epoch, micro_batches=3, is_prepared=False)
    prepared, _ = train(schedule, is_per_epoch=is_per_epoch, micro_batches=3)
    assert adopted == prepared


def test_several_schedulers_that_were_not_prepared_are_refused_by_name() -> None:
    model = Slope()
    optimizer = SGD(model.parameters(), lr=1.0)
    schedulers = LinearLR(optimizer), StepLR(optimizer, 2)
    trainer = make_trainer(model, everstep.DataLoader(Numbers(8), batch_size=2))
    trainer.prepare(optimizer)
    with pytest.raises(UsageError, match="2 schedulers of one optimizer were not prepared: LinearLR, StepLR"):
        next(trainer.epochs(1))
    assert all(each.optimizer is optimizer for each in schedulers)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("micro_batches", [1, 4])
def test_a_scheduler_per_epoch_steps_once_after_each(micro_batches: int) -> None:
    rates, _ = train(lambda o: StepLR(o, 1, 0.5), is_per_epoch=True, micro_batches=micro_batches)
    assert rates == [1.0] * 4 + [0.5] * 4 + [0.25] * 4


def test_a_schedulers_state_is_as_without_a_trainer() -> None:
    _, scheduler = train(lambda o: LinearLR(o, total_iters=3), is_per_epoch=True, epochs=1)
    parameter = nn.Parameter(torch.zeros(()))
    plain = LinearLR(SGD([parameter], lr=1.0), total_iters=3)
    assert set(scheduler.state_dict()) == set(plain.state_dict())
    plain.load_state_dict(scheduler.state_dict())
    assert plain.last_epoch == 1


def test_a_scheduler_that_is_told_a_metric() -> None:
    model = Slope()
    loader = everstep.DataLoader(Numbers(8), batch_size=2)
    trainer = make_trainer(model, loader, micro_batches=2)
    optimizer = SGD(model.parameters(), lr=1.0)
    optimizer, scheduler = trainer.prepare(optimizer, ReduceLROnPlateau(optimizer, factor=0.5, patience=0))
    for _ in trainer.epochs(3):
        for samples in loader:
            with trainer.step():
                model(samples).backward()
                optimizer.step()
        scheduler.step(1.0)
    assert optimizer.param_groups[0]["lr"] == 0.25


@pytest.mark.filterwarnings("error")
def test_a_scheduler_may_be_made_after_its_optimizer_was_prepared() -> None:
    model = Slope()
    loader = everstep.DataLoader(Numbers(8), batch_size=2)
    trainer = make_trainer(model, loader, micro_batches=2)
    optimizer = trainer.prepare(SGD(model.parameters(), lr=1.0))
    scheduler = trainer.prepare(StepLR(optimizer, 1, 0.5))
    for samples in loader:
        with trainer.step():
            model(samples).backward()
            optimizer.step()
            scheduler.step()
    assert model.weight.item() == -1.5 - 5.5 / 2


@pytest.mark.filterwarnings("ignore:Detected call of")  # torch does not know that the optimizer has stepped before
def test_what_comes_after_an_epoch_is_not_missed_by_a_checkpoint_from_its_last_step() -> None:
    def run(epochs: int, saved: dict[str, Any] | None, *, is_saving_inside: bool = False) -> tuple[list[float], Any]:
        model = Slope()
        loader = everstep.DataLoader(Numbers(8), batch_size=2)
        trainer = make_trainer(model, loader, micro_batches=2)
        optimizer = SGD(model.parameters(), lr=1.0)
        optimizer, scheduler = trainer.prepare(optimizer, StepLR(optimizer, 1, 0.5))
        parts = {"trainer": trainer, "optimizer": optimizer, "scheduler": scheduler}
        for name, part in parts.items():
            part.load_state_dict(saved[name]) if saved else None
        rates, states = [], {}
        for _ in trainer.epochs(epochs):
            for samples in loader:
                with trainer.step():
                    model(samples).backward()
                    rates.append(optimizer.param_groups[0]["lr"])
                    optimizer.step()
                    if is_saving_inside:
                        states = {name: part.state_dict() for name, part in parts.items()}
            scheduler.step()
            if not is_saving_inside:
                states = {name: part.state_dict() for name, part in parts.items()}
        return rates, states

    undisturbed, _ = run(3, None)
    for is_saving_inside in (True, False):
        first, saved = run(1, None, is_saving_inside=is_saving_inside)
        assert first + run(3, saved)[0] == undisturbed


# --- mixed precision --------------------------------------------------------------------------------------


def test_autocast_in_the_body() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    loader = everstep.DataLoader(torch.randn(24, 4), batch_size=4)  # type: ignore[arg-type]
    trainer = make_trainer(model, loader, micro_batches=3)
    optimizer = trainer.prepare(Adam(model.parameters()))
    dtypes = set()
    for samples in loader:
        with trainer.step():
            with torch.autocast("cpu", dtype=torch.bfloat16):
                output = model(samples)
            dtypes.add(output.dtype)
            output.float().square().mean().backward()
            optimizer.step()
    assert dtypes == {torch.bfloat16}
    assert {parameter.grad.dtype for parameter in model.parameters() if parameter.grad is not None} == {torch.float32}
    assert trainer.num_steps == 2


@pytest.mark.parametrize("micro_batches", [1, 4])
def test_an_overflow_skips_the_update_and_counts_the_step(micro_batches: int) -> None:
    model = Slope().float()
    loader = everstep.DataLoader(Numbers(4 * micro_batches), batch_size=1)
    trainer = make_trainer(model, loader, micro_batches)
    optimizer, scaler = SGD(model.parameters(), lr=1.0), torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
    optimizer, scaler = trainer.prepare(optimizer, scaler)
    told = []
    for samples in loader:
        with trainer.step():
            step = trainer.num_steps
            loss = model(samples.float())
            if step == 1 and trainer.is_last_micro_batch:
                loss = loss * float("inf")
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1e9)
            scaler.step(optimizer)
            scaler.update()
        if trainer.num_steps > step:
            told.append((model.weight.item(), scaler.get_scale()))
    means = [
        sum(range(start, start + micro_batches)) / micro_batches for start in range(0, 4 * micro_batches, micro_batches)
    ]
    assert [weight for weight, _ in told] == [-means[0], -means[0], -means[0] - means[2], -sum(means) + means[1]]
    assert [scale for _, scale in told] == [8.0, 4.0, 4.0, 8.0]
    assert trainer.num_steps == 4
    assert type(scaler).__name__ == "GradScaler"


def test_newcomers_get_the_scale_and_the_learning_rate() -> None:
    def prepared(scale: float, rate: float) -> tuple[Any, Any, Any]:
        model = Slope()
        trainer, optimizer = make_trainer(model), SGD(model.parameters(), lr=rate)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        scaler.scale(torch.ones(()))  # it has its scale from its first use on
        trainer.prepare(optimizer, StepLR(optimizer, 1), scaler)
        return trainer.engine.registry, optimizer, scaler

    leaders, _, _ = prepared(scale=8.0, rate=0.5)
    newcomers, optimizer, scaler = prepared(scale=2.0, rate=0.25)
    newcomers.load(leaders.state())

    assert (scaler.get_scale(), optimizer.param_groups[0]["lr"]) == (8.0, 0.5)


def test_a_scaler_that_is_switched_off_does_nothing() -> None:
    model = Slope()
    loader = everstep.DataLoader(Numbers(8), batch_size=2)
    trainer = make_trainer(model, loader, micro_batches=2)
    optimizer, scaler = trainer.prepare(SGD(model.parameters(), lr=1.0), torch.amp.GradScaler("cpu", enabled=False))
    for samples in loader:
        with trainer.step():
            scaler.scale(model(samples)).backward()
            scaler.step(optimizer)
            scaler.update()
    assert (trainer.num_steps, model.weight.item()) == (2, -7.0)


@pytest.mark.parametrize("has_late_scheduler", [False, True])
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_a_scaler_that_the_trainer_does_not_know_is_explained(micro_batches: int, has_late_scheduler: bool) -> None:
    model = Slope().float()
    loader = everstep.DataLoader(Numbers(6), batch_size=1)
    trainer = make_trainer(model, loader, micro_batches)
    optimizer, scaler = trainer.prepare(SGD(model.parameters(), lr=1.0)), torch.amp.GradScaler("cpu")
    if has_late_scheduler:
        StepLR(optimizer, 1)
    with pytest.raises(UsageError, match="does not know this GradScaler") as caught:
        for samples in loader:
            with trainer.step():
                scaler.scale(model(samples.float())).backward()
                scaler.step(optimizer)
                scaler.update()
    assert "trainer.prepare(optimizer, scheduler, scaler)" in str(caught.value.hint)
