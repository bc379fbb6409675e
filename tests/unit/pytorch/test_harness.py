"""A class as entrypoint."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from everstep import env
from everstep.errors import UsageError
from everstep.pytorch import harness
from lab.refused import refused

MODEL = """
from lab.one_weight import OneWeight

class MyTrial(OneWeight):
    made = []

    def __init__(self, context):
        super().__init__(context, lr=context.get_hparam("lr"))
        self.made.append(self)
"""


@pytest.fixture
def model_def(fresh_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "model_def", raising=False)
    (fresh_folder / "model_def.py").write_text(MODEL)
    return fresh_folder


def test_a_class_trains_with_the_job_files_lengths_and_hyperparameters(
    model_def: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {"searcher": {"name": "single", "metric": "validation_loss", "max_length": {"batches": 3}}}
    path = model_def / "experiment.json"
    path.write_text(json.dumps(config | {"hyperparameters": {"lr": 0.25}, "min_validation_period": {"batches": 1}}))
    monkeypatch.setenv(env.EXPERIMENT, str(path))

    harness.main(["model_def:MyTrial"])

    (trial,) = sys.modules["model_def"].MyTrial.made
    assert trial.w == 2.0**-3
    assert trial.diary.count("on_validation_end") == 3


@pytest.mark.parametrize(
    ("entrypoint", "code"),
    [
        ("model_def", "entrypoint-not-a-class"),
        ("model_def:Other", "entrypoint-not-a-class"),
        ("model_def:OneWeight.w", "entrypoint-not-a-class"),
        ("no_such_module:MyTrial", "entrypoint-module-missing"),
    ],
)
def test_what_is_not_a_class_is_refused(model_def: Path, entrypoint: str, code: str) -> None:
    with refused(code, UsageError):
        harness.find_class(entrypoint)


def test_the_harness_takes_one_class() -> None:
    with refused("harness-arguments", UsageError):
        harness.main([])
