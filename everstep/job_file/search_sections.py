"""Reads what a search needs from a job file, Determined's or ours: its searcher, its space, its micro-batches.

Ignores the rest of the file, so a file whose entrypoint cannot run here still has a preview."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from everstep.errors import UsageError
from everstep.job_file.overrides import CONFIG, apply
from everstep.job_file.tree import Tree, parse_mapping, read_text
from everstep.search.config import SearchConfig, read_searcher
from everstep.search.model_ranges import check_ranges
from everstep.search.option_notes import option_notes
from everstep.search.plain import num_grid_trials
from everstep.search.read_space import read_space
from everstep.search.space import Space


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchSections:
    config: SearchConfig
    space: Space
    searcher: dict[str, Any]  # as it is in the file
    hyperparameters: dict[str, Any]
    num_micro_batches: int


def read_search(path: Path, changes: Sequence[str] = ()) -> tuple[SearchConfig, Space]:
    """`changes` are those of `--config`."""
    found = sections_of(apply(parse_mapping(read_text(path), name=str(path)), changes, option=CONFIG), name=str(path))
    return found.config, found.space


def sections_of(tree: Tree, *, name: str) -> SearchSections:
    """Errors say in which line they are."""
    searcher, resources = (tree.at(key) for key in ("searcher", "resources"))
    if searcher is None:
        near = difflib.get_close_matches("searcher", [key for key, _ in tree.children()], n=1, cutoff=0.8)
        add = "add one, such as searcher: {name: random, metric: loss, max_trials: 16}"
        hint = f"write searcher instead of {near[0]}" if near else add
        raise UsageError(f"{name} has no searcher", hint=hint, code="searcher-missing")
    with _at_line(tree, name):
        section = {"name": searcher.text} if searcher.is_scalar else searcher.plain()
        config = read_searcher(section)
        num_micro_batches = _num_micro_batches(None if resources is None else resources.plain())
        hyperparameters = _mapping(tree.at("hyperparameters"))
        space = read_space(hyperparameters, num_micro_batches=num_micro_batches)
        if config.name == "grid":
            num_grid_trials(space)  # refuses a grid without an end
        check_ranges(config, space)
        space = replace(space, notes=(*space.notes, *option_notes(section, config)))
        return SearchSections(
            config=config,
            space=space,
            searcher=section,
            hyperparameters=hyperparameters,
            num_micro_batches=num_micro_batches,
        )


@contextmanager
def _at_line(tree: Tree, name: str) -> Iterator[None]:
    """The search knows no lines: its errors begin with the key's path."""
    try:
        yield
    except UsageError as error:
        place = _place(tree, error.message)
        where = name if place is None or place.line is None else f"{name}:{place.line}"
        raise UsageError(f"{where}: {error.message}", hint=error.hint, code=error.code) from None


def _place(tree: Tree, message: str) -> Tree | None:
    """The deepest value on the path that the message begins with."""
    words = re.match(r"[\w.]+", message)
    path, found = words[0].split(".") if words else [], None
    for depth in range(1, len(path) + 1):
        found = tree.at(*path[:depth]) or found
    return found


def _mapping(found: Tree | None) -> dict[str, Any]:
    given = {} if found is None else found.plain()
    if not isinstance(given, dict):
        message = f"hyperparameters: {given!r} is not a mapping"
        raise UsageError(message, hint="for example, hyperparameters: {lr: 0.1}", code="hyperparameters-not-a-map")
    return given


def _num_micro_batches(resources: object) -> int:
    """Determined's slots_per_trial: a batch is split into that many parts, for any number of slots."""
    given = resources.get("slots_per_trial") if isinstance(resources, dict) else None
    if given is None:
        return 1
    if not isinstance(given, int) or isinstance(given, bool) or given < 0:
        message = f"resources.slots_per_trial: {given!r} is not valid"
        raise UsageError(message, hint="use a whole number of slots", code="slots-per-trial")
    return max(1, given)
