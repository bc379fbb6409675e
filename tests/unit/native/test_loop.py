"""The loop as people write it: epochs, checkpoints, breaking off, errors of their own, and wrong use."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.utils import data

import everstep
from everstep.errors import UsageError
from lab.alone import make_trainer
from lab.samples import Numbers


class Job:
    """A small model that learns from noisy numbers."""

    def __init__(self, micro_batches: int | None = 3, size: int = 32, saved: dict[str, Any] | None = None) -> None:
        torch.manual_seed(0)
        self.model = everstep.DistributedDataParallel(
            nn.Sequential(nn.Linear(1, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))
        )
        self.loader = everstep.DataLoader(Numbers(size), batch_size=2, shuffle=True, seed=3)
        self.trainer = make_trainer(self.model, self.loader, micro_batches, seed=5)
        self.optimizer = self.trainer.prepare(torch.optim.Adam(self.model.parameters()))
        self.seen: list[tuple[int, list[int]]] = []  # epoch and samples of each micro-batch
        for name, part in self.parts.items():
            part.load_state_dict(saved[name]) if saved else None

    @property
    def parts(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer, "trainer": self.trainer}

    def save(self) -> dict[str, Any]:
        return copy.deepcopy({name: part.state_dict() for name, part in self.parts.items()})

    def compute(self, samples: torch.Tensor) -> None:
        self.model(samples.float().unsqueeze(1) / 32).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def train(self, epochs: int, until: int | None = None) -> dict[str, Any]:
        """To the end, or until a step is committed: the state as saved in its body."""
        for epoch in self.trainer.epochs(epochs):
            for samples in self.loader:
                with self.trainer.step():
                    self.compute(samples)
                    self.seen.append((epoch, samples.tolist()))
                    if self.trainer.num_steps == until:
                        return self.save()
        return self.save()


def digest(state: dict[str, Any]) -> list[Any]:
    return [value.tolist() for value in state["model"].values()]


# --- epochs and checkpoints -------------------------------------------------------------------------------


@pytest.mark.parametrize("until", [1, 4, 6, 7, 12])  # 6 steps to an epoch
def test_a_checkpoint_saved_in_the_body_repeats_and_loses_nothing(until: int) -> None:
    whole = Job()
    expected = whole.train(3)
    first = Job()
    saved = first.train(3, until)
    second = Job(micro_batches=None, saved=saved)
    assert second.trainer.num_steps == until
    assert digest(second.train(3)) == digest(expected)
    assert first.seen + second.seen == whole.seen
    assert second.trainer.num_steps == whole.trainer.num_steps == 18


def test_the_micro_batches_stay_what_they_were_when_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    saved = Job(micro_batches=3).train(1, until=2)
    monkeypatch.setenv("EVERSTEP_MAX_WORKERS", "7")
    fresh = Job(micro_batches=None)
    assert (fresh.trainer.num_micro_batches, len(fresh.loader)) == (7, 3)
    resumed = Job(micro_batches=None, saved=saved)
    assert (resumed.trainer.num_micro_batches, len(resumed.loader)) == (3, 6)


def test_other_micro_batches_than_saved_are_refused() -> None:
    saved = Job(micro_batches=3).train(1, until=2)
    with pytest.raises(UsageError) as caught:
        Job(micro_batches=4, saved=saved)
    assert caught.value.code == "micro-batches-differ-from-state"
    assert "micro_batches=3" in str(caught.value.hint)


def test_an_empty_state_is_a_fresh_start() -> None:
    job = Job()
    job.trainer.load_state_dict({})
    job.train(1)
    assert job.trainer.num_steps == 6


def test_a_state_of_another_dataset_is_refused_with_both_sizes() -> None:
    saved = Job(size=32).train(1, until=2)
    with pytest.raises(UsageError, match="size=32 there, size=33 here") as caught:
        Job(size=33, saved=saved)
    assert caught.value.hint


def test_a_state_comes_too_late_after_the_first_step() -> None:
    job = Job()
    saved = job.train(1, until=1)
    with pytest.raises(UsageError, match="training has begun"):
        job.trainer.load_state_dict(saved["trainer"])


def test_epochs_gives_those_that_are_left() -> None:
    job = Job()
    assert list(job.trainer.epochs(0)) == []
    assert sorted({epoch for epoch, _ in job.seen}) == []
    job.train(2)
    assert sorted({epoch for epoch, _ in job.seen}) == [0, 1]
    job.train(5)
    assert sorted({epoch for epoch, _ in job.seen}) == [0, 1, 2, 3, 4]


def test_an_epoch_that_is_left_early_is_over_for_epochs() -> None:
    job, seen = Job(), []
    for epoch in job.trainer.epochs(3):
        for samples in job.loader:
            with job.trainer.step():
                job.compute(samples)
            if job.trainer.num_steps > len(seen):
                seen.append(epoch)
                if seen.count(epoch) == 2:
                    break
    assert seen == [0, 0, 1, 1, 2, 2]


def test_one_worker_computes_what_one_without_a_trainer_would() -> None:
    samples = torch.randn(12, 3, generator=torch.Generator().manual_seed(1))
    ends = []
    for is_elastic in (False, True):
        torch.manual_seed(0)
        model = nn.Linear(3, 1)
        optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
        loader: Any = data.DataLoader(samples, batch_size=4)  # type: ignore[arg-type]
        trainer = make_trainer(model, loader) if is_elastic else None
        optimizer = trainer.prepare(optimizer) if trainer else optimizer
        for batch in loader:
            if trainer:
                with trainer.step():
                    model(batch).square().mean().backward()
                    optimizer.step()
            else:
                optimizer.zero_grad()
                model(batch).square().mean().backward()
                optimizer.step()
        ends.append(torch.cat([each.detach().flatten() for each in model.parameters()]))
    assert torch.equal(*ends)


# --- errors of the user's own -----------------------------------------------------------------------------


@pytest.mark.parametrize("micro_batch", range(3))
@pytest.mark.parametrize("where", ["forward", "after backward", "after the step"])
def test_an_error_in_the_body_rises_unchanged_and_the_loop_could_go_on(micro_batch: int, where: str) -> None:
    class SpiltCoffee(Exception):
        pass

    job, spilt = Job(micro_batches=3), SpiltCoffee("on sample 5")
    num_micro_batches, is_spilt = 0, False
    with pytest.raises(SpiltCoffee) as caught:
        for samples in job.loader:
            with job.trainer.step():
                is_spilt = num_micro_batches == micro_batch
                if is_spilt and where == "forward":
                    raise spilt
                job.model(samples.float().unsqueeze(1)).mean().backward()
                if is_spilt and where == "after backward":
                    raise spilt
                job.optimizer.step()
                num_micro_batches += 1
                if is_spilt:
                    raise spilt
    assert caught.value is spilt
    assert job.trainer.num_steps == (1 if where == "after the step" and micro_batch == 2 else 0)
    job.loader.set_epoch(0)
    job.train(1)
    assert job.trainer.num_steps == 6


# --- wrong use --------------------------------------------------------------------------------------------


def taken_not_trained(job: Job) -> None:
    for _ in job.loader:
        pass


def two_steps_for_one_batch(job: Job) -> None:
    for samples in job.loader:
        for _ in range(2):
            with job.trainer.step():
                job.compute(samples)


def step_before_the_loop(job: Job) -> None:
    with job.trainer.step():
        pass


def no_optimizer_step(job: Job) -> None:
    for samples in job.loader:
        with job.trainer.step():
            job.model(samples.float().unsqueeze(1)).mean().backward()


def scheduler_between_steps(job: Job) -> None:
    scheduler = torch.optim.lr_scheduler.StepLR(job.optimizer, 1)
    job.trainer.prepare(scheduler)
    for samples in job.loader:
        with job.trainer.step():
            job.compute(samples)
        scheduler.step()


def another_length(job: Job) -> None:
    job.trainer.load_state_dict(job.trainer.state_dict() | {"data": {"size": 12}})


MISUSES: list[tuple[Any, str]] = [
    (taken_not_trained, "batch-not-trained-on"),
    (two_steps_for_one_batch, "step-without-batch"),
    (step_before_the_loop, "step-without-batch"),
    (no_optimizer_step, "no-optimizer-step"),
    (scheduler_between_steps, "called-outside-step"),
    (another_length, "state-of-other-data"),
]


@pytest.mark.parametrize(("misuse", "code"), MISUSES, ids=lambda value: getattr(value, "__name__", ""))
def test_wrong_use_of_the_loop_is_explained(misuse: Any, code: str) -> None:
    with pytest.raises(UsageError) as caught:
        misuse(Job())
    assert caught.value.code == code
    assert caught.value.hint


def test_a_batch_may_be_left_out_by_its_weight() -> None:
    job = Job()
    before = digest(job.save())
    for samples in job.loader:
        with job.trainer.step(weight=0):
            job.compute(samples)
    assert job.trainer.num_steps == 6
    assert digest(job.save())[:2] == before[:2]


def test_step_before_prepare() -> None:
    with pytest.raises(UsageError, match="step\\(\\) before prepare\\(\\)") as caught, make_trainer(Job().model).step():
        pass
    assert "trainer.prepare(optimizer)" in str(caught.value.hint)


@pytest.mark.parametrize("micro_batches", [0, -2])
def test_micro_batches_that_are_not_positive(micro_batches: int) -> None:
    with pytest.raises(UsageError, match=f"micro_batches={micro_batches}") as caught:
        make_trainer(nn.Linear(1, 1), micro_batches=micro_batches)
    assert caught.value.hint


def test_a_model_without_memory_is_refused_with_its_parameters_name() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta"))
    with pytest.raises(UsageError, match="2 parameters have no memory yet \\(device meta\\), 1.weight first") as caught:
        make_trainer(model)
    assert "to_empty" in str(caught.value.hint)


def test_epochs_without_a_loader() -> None:
    with pytest.raises(UsageError, match="epochs\\(\\) without a loader"):
        next(make_trainer(nn.Linear(1, 1)).epochs(1))
