"""trainer.log, trainer.means, trainer.on_leave and weights_digest, as one process sees them; several are in
tests/cluster/test_native_loop.py."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
import torch
from torch import nn

import everstep
from everstep.engine.leaving import Leaving
from everstep.errors import UsageError
from lab.alone import make_trainer
from lab.samples import Numbers


class Loop:
    def __init__(self, micro_batches: int = 3, size: int = 10) -> None:
        self.model = everstep.DistributedDataParallel(nn.Linear(1, 1))
        self.loader = everstep.DataLoader(Numbers(size), batch_size=2)
        self.trainer = make_trainer(self.model, self.loader, micro_batches)
        self.optimizer = self.trainer.prepare(torch.optim.SGD(self.model.parameters(), lr=0.1))

    def step(self, samples: torch.Tensor, **values: Any) -> None:
        self.model(samples.float().unsqueeze(1)).mean().backward()
        self.trainer.log(**values)
        self.optimizer.step()
        self.optimizer.zero_grad()


def test_the_mean_is_over_all_samples_and_begins_anew_when_it_is_taken() -> None:
    loop = Loop()
    for epoch in loop.trainer.epochs(2):
        for samples in loop.loader:
            with loop.trainer.step():
                loop.step(samples, value=samples.float().mean() + epoch, ones=1)
        assert loop.trainer.means() == {"value": 4.5 + epoch, "ones": 1.0}  # of 0 to 9; the last batch is short


def test_what_is_logged_after_the_update_counts_too() -> None:
    loop = Loop(micro_batches=1)
    for _ in loop.trainer.epochs(1):
        for number, samples in enumerate(loop.loader):
            with loop.trainer.step():
                loop.step(samples)
                loop.trainer.log(number=number)
        assert loop.trainer.means() == {"number": 2.0}


def test_a_checkpoint_in_the_middle_of_an_epoch_keeps_what_was_logged() -> None:
    first, second = Loop(micro_batches=1), Loop(micro_batches=1)
    for number, samples in enumerate(first.loader):
        with first.trainer.step():
            first.step(samples, value=samples.float().mean())
        if number == 2:
            break
    second.trainer.load_state_dict(first.trainer.state_dict())
    for _ in second.trainer.epochs(1):
        for samples in second.loader:
            with second.trainer.step():
                second.step(samples, value=samples.float().mean())
        assert second.trainer.means() == {"value": 4.5}


@pytest.mark.parametrize(
    ("value", "told"), [(torch.ones(3), r"log\(loss=…\) got a Tensor of shape \(3,\)"), ("low", "got a str 'low'")]
)
def test_what_is_no_number_is_refused(value: Any, told: str) -> None:
    loop = Loop()
    with pytest.raises(UsageError, match=told) as refused:
        for samples in loop.loader:
            with loop.trainer.step():
                loop.step(samples, loss=value)
    assert refused.value.hint


def test_logging_outside_of_a_step_is_refused() -> None:
    with pytest.raises(UsageError, match="log\\(\\) outside of a step"):
        Loop().trainer.log(loss=1.0)


def test_who_is_asked_to_go_saves_after_the_step_and_ends() -> None:
    loop, saved = Loop(micro_batches=1), []
    loop.trainer.on_leave(lambda: saved.append(loop.trainer.num_steps))
    with pytest.raises(Leaving):
        for _ in loop.trainer.epochs(9):
            for samples in loop.loader:
                with loop.trainer.step():
                    loop.step(samples, loss=1.0)
                    if loop.trainer.num_steps == 3:
                        os.kill(os.getpid(), signal.SIGTERM)
    assert saved and saved[0] >= 3 and len(saved) == 1


def test_a_digest_is_that_of_the_weights_and_of_nothing_else() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    digest = everstep.weights_digest(model)
    assert digest == everstep.weights_digest(everstep.DistributedDataParallel(model)) and len(digest) == 64
    with torch.no_grad():
        model[0].weight[0, 0] += 1e-7
    assert everstep.weights_digest(model) != digest
