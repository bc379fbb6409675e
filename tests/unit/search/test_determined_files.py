"""Determined's files: those of all releases are read with the preview that they had there, or refused."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import yaml
from unit.search.determined import (
    NO_TEMPLATES,
    NOT_USED,
    NUMBER_IN_QUOTES,
    OLD_LENGTH,
    PLAIN_NUMBER,
    PROGRAM,
    REFUSED,
    instead,
    of,
    plain_brackets,
)

from everstep.errors import UsageError
from everstep.job_file.experiment import load_experiment
from everstep.job_file.search_sections import sections_of
from everstep.job_file.tree import parse_mapping
from everstep.search.config import SearchConfig, read_searcher
from everstep.search.preview import preview
from everstep.search.read_space import read_space
from everstep.search.search import Search
from everstep.search.space import Space


def check(config: dict) -> None:
    """As an experiment is checked before it starts."""
    if config.keys() == {"searcher", "resources"}:
        load_experiment(None, content=whole(config))
    searcher = read_searcher(config.get("searcher"))
    space = read_space(config.get("hyperparameters"))
    if searcher.name == "grid":
        Search.begin(searcher, space, seed=0)


def whole(config: dict) -> dict:
    """With what makes it a file of Determined's, and what each file needs."""
    return {"name": "a", "entrypoint": "python3 a.py", "max_restarts": 5, **config}


def as_experiment(case: dict) -> dict:
    given, kind = case["input"]["config"], case["input"]["as"]
    single = {"name": "single", "metric": "loss"}
    if kind == "resources":
        return {"searcher": single, "resources": given}
    if kind == "searcher":
        return {"searcher": given, "hyperparameters": {"x": 1}}
    if kind in ("length", "positive_length"):
        return {"searcher": {**single, "max_length": given}}
    if kind == "hyperparameter":
        return {"searcher": single, "hyperparameters": {"x": given}}
    if kind == "grid_hyperparameters":
        return {"searcher": {**single, "name": "grid"}, "hyperparameters": given}
    return given if kind == "experiment" else {"searcher": single, "hyperparameters": given}


@of("config")
def test_files_are_accepted_or_refused(case):
    expected = case["expect"]
    config = as_experiment(case)
    if expected.get("runnable", expected["sane"]):
        check(config)
        if "defaulted" in expected and case["input"]["as"] == "searcher":
            check_defaults(read_searcher(config["searcher"]), expected["defaulted"])
    else:
        with pytest.raises(UsageError) as error:
            check(config)
        assert error.value.hint


def check_defaults(config: SearchConfig, expected: dict) -> None:
    for key, value in expected.items():
        if key not in ("max_length", "stop_once"):
            found = getattr(config, key)
            assert (list(found) if isinstance(found, tuple) else found) == value, key


@instead(REFUSED)
def test_what_would_break_later_is_refused_at_once(case):
    with pytest.raises(UsageError) as error:
        check(as_experiment(case))
    assert error.value.hint


@instead(OLD_LENGTH, PLAIN_NUMBER)
def test_lengths_mean_what_they_did_before_0_38(case):
    config = read_searcher(as_experiment(case)["searcher"])
    assert config.max_length in (100, 1000) and config.unit == "batches"


@instead(PROGRAM)
def test_a_search_program_is_accepted_as_before_0_38(case):
    given = case["input"]
    config = read_searcher(given.get("config") or given["searcher"])
    assert (config.name, config.unit, config.max_length) == ("custom", "batches", None)
    with pytest.raises(UsageError) as error:
        preview(config, Space())
    assert error.value.code == "search-preview-custom"


@pytest.mark.parametrize("write", [yaml.safe_dump, json.dumps], ids=["yaml", "json"])
@of("file")
def test_files_are_read_from_their_text(case, write):
    given = {key: case["input"][key] for key in ("searcher", "hyperparameters") if key in case["input"]}
    tree = parse_mapping(write(given), name="a.yaml")
    if is_refused(case):
        with pytest.raises(UsageError) as error:
            sections_of(tree, name="a.yaml")
        assert error.value.message.startswith("a.yaml:")
        return
    found = sections_of(tree, name="a.yaml")
    assert (found.searcher, found.hyperparameters) == (given["searcher"], given.get("hyperparameters") or {})


@instead(NOT_USED)
def test_a_key_that_is_not_used_is_named(case):
    config = as_experiment(case)
    names = {f"resources.{name}" for name in config["resources"]} if "resources" in config else {"hyperparams"}
    loaded = load_experiment(None, content=whole(config))
    assert all(any(note.startswith(name) for note in loaded.notes) for name in names)


@instead(NUMBER_IN_QUOTES)
def test_a_number_in_quotes_is_a_number(case):
    assert load_experiment(None, content=whole(as_experiment(case))).spec.scheduling.max_slots == 4


@instead(NO_TEMPLATES)
def test_nothing_is_merged_into_a_file(case):
    given = {"x": case["input"]["config"]}
    config = whole({"searcher": {"name": "single", "metric": "loss"}, "hyperparameters": given})
    assert load_experiment(None, content=config).spec.hyperparameters == given


def is_refused(case: dict) -> bool:
    return any("removed" in code or "unknown" in code for _, code in case["expect"].get("why", []))


@of("file")
def test_files_of_all_releases(case):
    given, expected = case["input"], case["expect"]
    if is_refused(case):
        with pytest.raises(UsageError) as error:
            check(given)
        assert str(given["searcher"]["name"]) in error.value.message
        return
    check(given)
    config, space = read_searcher(given["searcher"]), read_space(given.get("hyperparameters"))
    found = preview(replace(config, order="arrival"), space)
    lengths = {line[1] for line in expected["preview"]}
    lines = [[number, "full"] for number, _ in found.lines] if lengths == {"full"} else [list(x) for x in found.lines]
    assert lines == expected["preview"]
    assert found.num_trials == expected["trials"] and found.num_at_once == expected["start"]
    assert plain_brackets(config) == expected["brackets"] if "brackets" in expected else not config.is_halving
