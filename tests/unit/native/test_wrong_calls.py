"""Calls that cannot be right are refused at once, with the way out."""

from __future__ import annotations

import sys
import textwrap
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


def refused(act: Any) -> UsageError:
    with pytest.raises(UsageError) as caught:
        act()
    assert caught.value.hint
    return caught.value


def test_micro_batches_as_a_text() -> None:
    assert refused(lambda: make_trainer(nn.Linear(1, 1), micro_batches="4")).code == "micro-batches-not-positive"


def test_arguments_in_another_order() -> None:
    model, loader = nn.Linear(1, 1), everstep.DataLoader(Numbers(4), batch_size=2)
    assert refused(lambda: make_trainer(loader, model)).code == "model-not-a-module"


@pytest.mark.parametrize(
    ("make_thing", "words"),
    [
        (lambda model, loader: loader, "argument 2 is a DataLoader"),
        (lambda model, loader: model, "argument 2 is a Linear"),
        (lambda model, loader: None, "argument 2 is a NoneType"),
        (lambda model, loader: 0.1, "argument 2 is a float"),
        (lambda model, loader: [loader], "argument 2 holds a DataLoader"),
    ],
)
def test_prepare_names_what_it_does_not_take_and_binds_nothing(make_thing: Any, words: str) -> None:
    model, loader = nn.Linear(1, 1), everstep.DataLoader(Numbers(4), batch_size=2)
    trainer, optimizer = make_trainer(model, loader), torch.optim.SGD(model.parameters(), lr=0.1)

    error = refused(lambda: trainer.prepare(optimizer, make_thing(model, loader)))

    assert error.message == f"prepare() takes optimizers, schedulers and scalers; {words}"
    assert error.code == "prepare-wrong-kind"
    assert trainer.prepare(optimizer) is optimizer and "optimizer" in trainer.engine.registry.state()


def test_an_optimizer_of_another_model() -> None:
    trainer, other = make_trainer(nn.Linear(1, 1)), nn.Linear(1, 1)
    error = refused(lambda: trainer.prepare(torch.optim.SGD(other.parameters(), lr=0.1)))
    assert error.code == "optimizer-of-another-model"


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

    assert refused(train).code == "step-without-gradients"


def test_a_worker_of_a_stopped_job_shows_the_reason_without_our_own_lines(tmp_path: Path) -> None:
    script = """
        import everstep
        from everstep.errors import JobStopped

        everstep.ElasticTrainer
        ours = compile("raise JobStopped('w0: ValueError: my bug')", everstep.__file__, "exec")
        exec(ours)
    """
    (tmp_path / "train.py").write_text(textwrap.dedent(script))

    told = run(sys.executable, "train.py", folder=tmp_path).stderr

    assert "JobStopped: w0: ValueError: my bug" in told
    assert "train.py" in told and everstep.__file__ not in told


def test_what_a_script_dies_of_is_shown_without_our_own_lines(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import everstep\n\neverstep.ElasticTrainer(None, micro_batches=4)\n")

    done = run(sys.executable, "train.py", folder=tmp_path)

    assert done.returncode == 1
    heading, place, line, error, *hint = done.stderr.splitlines()
    assert heading == "Traceback (most recent call last):"
    assert "train.py" in place and "line 3" in place and "ElasticTrainer(None" in line
    assert error.startswith("everstep.errors.UsageError: ") and hint[-1].startswith("  HINT: ")
    assert "native/trainer.py" not in done.stderr
