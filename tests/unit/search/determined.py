"""Determined's searchers by cases from its own tests and sources: what it creates, stops, previews and accepts.

`NOT_COPIED` lists each case that ends differently here, with what we do instead. `test_determined_*.py` play them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from everstep.search.config import SearchConfig, read_searcher

CASES = [json.loads(line) for line in (Path(__file__).parent / "data" / "determined.jsonl").read_text().splitlines()]

EXACT_LOGARITHM = "rungs are counted in whole numbers; Determined's truncated logarithm is one too low"
BOUNDED = "there are never more trials than max_trials asks for"
LATE = "a stopped trial's later results change nothing"
BAD_METRIC = "a metric that is not finite is the worst value; one that is missing is refused before the search sees it"
BY_ITSELF = "a trial that ends by itself makes room for the next one"
ONLY_ERRORS = "a replaced trial does not count: if all others failed, the experiment is in error"
EMPTY_GRID = "a grid without any hyperparameter is refused: Determined's never ends"
REFUSED = "refused with a hint: Determined accepts it, and then it fails or means something else"
OLD_LENGTH = "max_length means what it did before 0.38; max_time and time_metric are not needed"
NO_TEMPLATES = "a file is the whole configuration: there are no templates"
NOT_USED = "keys that Everstep does not use are named in a note, whatever their values are"
PROGRAM = "your program decides; Determined dropped this in 0.38"
PLAIN_NUMBER = "a plain number is a number of batches for every searcher"
NUMBER_IN_QUOTES = "a number of slots may be in quotes"
TWO_SEARCHES = "no file asks for two random searches side by side"

NOT_COPIED = {
    **dict.fromkeys(["brackets-073", "brackets-075", "brackets-076", "brackets-077"], EXACT_LOGARITHM),
    **dict.fromkeys(["brackets-089", "preview-033"], BOUNDED),
    **dict.fromkeys(["search-051", "search-052", "rung_decision-015"], LATE),
    **dict.fromkeys(["search-055", "search-056", "search-057"], BAD_METRIC),
    **dict.fromkeys(["metric_reading-007", "metric_reading-008"], BAD_METRIC),
    **dict.fromkeys(["search-049", "search-050"], BY_ITSELF),
    "search-044": ONLY_ERRORS,
    **dict.fromkeys(["plain-034", "preview-011"], EMPTY_GRID),
    **dict.fromkeys(["merge-002", "merge-003", "merge-004"], NO_TEMPLATES),
    **dict.fromkeys(["config-269"], NOT_USED),
    **dict.fromkeys(["config-050", "config-051", "config-098"], OLD_LENGTH),
    **dict.fromkeys(["config-032", "config-122", "config-218", "config-221", "config-261"], REFUSED),
    **dict.fromkeys(["config-285", "config-289"], REFUSED),
    **dict.fromkeys(["config-185", "file-047", "file-112"], PROGRAM),
    "config-153": PLAIN_NUMBER,
    "config-290": NUMBER_IN_QUOTES,
    "outcome_0_37-015": TWO_SEARCHES,
}
PLAYED: set[str] = set()  # cases that have a test


def of(*kinds: str) -> pytest.MarkDecorator:
    """Those that hold here as well."""
    return _each([case for case in CASES if case["kind"] in kinds and case["id"] not in NOT_COPIED])


def instead(*reasons: str, kind: str | None = None) -> pytest.MarkDecorator:
    """Those that end differently here."""
    return _each([case for case in CASES if NOT_COPIED.get(case["id"]) in reasons and kind in (None, case["kind"])])


def _each(found: list[dict[str, Any]]) -> pytest.MarkDecorator:
    PLAYED.update(case["id"] for case in found)
    return pytest.mark.parametrize("case", found, ids=[case["id"] for case in found])


def searcher(given: dict[str, Any], **more: Any) -> SearchConfig:
    """Some cases have more trials than we allow."""
    whole = {"metric": "loss", **given, **more}
    if "max_trials" not in whole:
        return read_searcher(whole)
    return replace(read_searcher({**whole, "max_trials": 1}), max_trials=whole["max_trials"])


def plain_brackets(config: SearchConfig) -> list[dict[str, Any]]:
    return [
        {
            "rungs": len(each.lengths),
            "trials": each.num_trials,
            "concurrent": each.num_at_once,
            "start": each.num_at_start,
            "lengths": list(each.lengths),
        }
        for each in config.brackets()
    ]
