"""Calls that cannot be right are refused at once, with the way out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import everstep
from everstep.errors import UsageError
from lab.alone import make_trainer
from lab.command import run
from lab.samples import Numbers


def refused(act: Any) -> str:
    with pytest.raises(UsageError) as caught:
        act()
    assert caught.value.hint
    return str(caught.value)


def test_micro_batches_as_a_text() -> None:
    assert "micro_batches='4' is a str" in refused(lambda: make_trainer(nn.Linear(1, 1), micro_batches="4"))


def test_arguments_in_another_order() -> None:
    model, loader = nn.Linear(1, 1), everstep.DataLoader(Numbers(4), batch_size=2)
    assert "got a DataLoader in place of a model" in refused(lambda: make_trainer(loader, model))
    trainer = make_trainer(model, loader)
    schedule = torch.optim.lr_scheduler.StepLR(torch.optim.SGD(model.parameters()), 1)
    assert "got a StepLR in place of an optimizer" in refused(lambda: trainer.prepare(schedule))


def test_an_optimizer_of_another_model() -> None:
    trainer, other = make_trainer(nn.Linear(1, 1)), nn.Linear(1, 1)
    told = refused(lambda: trainer.prepare(torch.optim.SGD(other.parameters(), lr=0.1)))
    assert "the optimizer has no parameter of the trainer's model" in told


@pytest.mark.parametrize("is_of_another", [False, True])
def test_a_step_without_a_gradient(is_of_another: bool) -> None:
    model, other = everstep.DistributedDataParallel(nn.Linear(1, 1)), nn.Linear(1, 1)
    loader = everstep.DataLoader(Numbers(4), batch_size=2)
    trainer = make_trainer(model, loader)
    optimizer = trainer.prepare(torch.optim.SGD(model.parameters(), lr=0.1))

    def train() -> None:
        for samples in loader:
            with trainer.step():
                if is_of_another:
                    other(samples.float().unsqueeze(1)).mean().backward()
                optimizer.step()

    assert "no parameter had a gradient in step 1" in refused(train)


def test_what_a_script_dies_of_is_shown_without_our_own_lines(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import everstep\n\neverstep.ElasticTrainer(None, micro_batches=4)\n")

    done = run(sys.executable, "train.py", folder=tmp_path)

    assert done.returncode == 1
    heading, place, line, error, *hint = done.stderr.splitlines()
    assert heading == "Traceback (most recent call last):"
    assert "train.py" in place and "line 3" in place and "ElasticTrainer(None" in line
    assert error.startswith("everstep.errors.UsageError: ") and hint[-1].startswith("  HINT: ")
    assert "native/trainer.py" not in done.stderr
