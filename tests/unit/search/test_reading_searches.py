"""The sections of a file together: what a searcher cannot do with a space, and options without effect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from everstep.errors import UsageError
from everstep.job_file.experiment import load_experiment
from everstep.job_file.search_sections import read_search
from everstep.job_file.tree import dump
from everstep.search.preview import preview

HALVING = {"name": "adaptive_asha", "max_trials": 16, "max_length": 64}
TPE = {"name": "tpe", "max_trials": 16, "max_length": 64}


def file_of(folder: Path, searcher: dict[str, Any], hyperparameters: dict[str, Any] | None = None) -> Path:
    path = folder / "exp.yaml"
    content = {"entrypoint": "python3 a.py", "max_restarts": 1, "searcher": {"metric": "loss", **searcher}}
    path.write_text(dump({**content, "hyperparameters": hyperparameters or {"x": 1}}))
    return path


@pytest.mark.parametrize(
    ("searcher", "note"),
    [
        ({**HALVING, "cohort": 8, "order": "arrival"}, "searcher.cohort: 8 has no effect"),
        ({**HALVING, "stop_once": False}, "searcher.stop_once: false has no effect"),
        ({**TPE, "order": "arrival"}, "searcher.order: arrival has no effect"),
        ({**TPE, "max_concurrent_trials": 9}, "searcher.max_concurrent_trials: 9 has no effect"),
        ({"name": "single", "max_length": 64, "lengths": [16, 64, 80]}, "searcher.lengths: [64, 80] have no effect"),
    ],
)
def test_an_option_without_effect_is_named_by_preview_and_create(tmp_path: Path, searcher, note) -> None:
    path = file_of(tmp_path, searcher)
    for notes in (preview(*read_search(path)).notes, load_experiment(path).notes):
        assert [each for each in notes if "no effect" in each and each.startswith(note)]


@pytest.mark.parametrize(
    "searcher",
    [
        HALVING,
        {**HALVING, "stop_once": False, "order": "arrival"},
        {**HALVING, "cohort": 8},
        TPE,
        {**TPE, "max_concurrent_trials": 9, "cohort": 9},
        {"name": "single", "max_length": 64, "lengths": [16]},
    ],
)
def test_options_with_effect_are_not(tmp_path: Path, searcher) -> None:
    assert not [each for each in load_experiment(file_of(tmp_path, searcher)).notes if "no effect" in each]


@pytest.mark.parametrize("name", ["tpe", "cmaes", "gp", "qmc"])
def test_a_range_that_is_too_wide_for_a_sampler_is_refused(tmp_path: Path, name) -> None:
    for given in ({"double": [-1.7e308, 1.7e308]}, *([{"int": [0, 2**62]}] if name == "gp" else [])):
        with pytest.raises(UsageError) as error:
            read_search(file_of(tmp_path, {**TPE, "name": name}, {"net": {"x": given}}))
        assert error.value.code == "search-range-too-wide" and "hyperparameters.net.x" in error.value.message
    read_search(file_of(tmp_path, {**TPE, "name": name}, {"x": {"double": [0, 1.7e308]}, "y": {"int": [1, 10**6]}}))
