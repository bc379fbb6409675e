"""Ranges that Optuna's samplers cannot search. They are refused when the file is read."""

from __future__ import annotations

import math

from everstep.errors import UsageError
from everstep.search.config import MODEL_BASED, SearchConfig
from everstep.search.space import Real, Space, Whole, dotted

_MOST_WHOLE_OF_GP = 1_000_000  # it lists them in memory


def check_ranges(config: SearchConfig, space: Space) -> None:
    if config.name not in MODEL_BASED:
        return
    for path, leaf in space.searched():
        if isinstance(leaf, Real) and not math.isfinite(leaf.high - leaf.low):
            raise UsageError(
                f"{dotted(path)}: from {leaf.low:g} to {leaf.high:g} is too wide for {config.name}",
                hint="use a range whose width is a finite number, or searcher.name: random",
                code="search-range-too-wide",
            )
        if config.name == "gp" and isinstance(leaf, Whole) and leaf.size > _MOST_WHOLE_OF_GP:
            raise UsageError(
                f"{dotted(path)}: {leaf.size} whole numbers are more than the {_MOST_WHOLE_OF_GP} that gp can search",
                hint="use double and round in your script, or searcher.name: tpe",
                code="search-range-too-wide",
            )
