"""Notes about options of a searcher that have no effect beside its other options."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from everstep.search.config import ARRIVAL, EXACT, MODEL_BASED, SearchConfig
from everstep.search.model_based import COHORT


def option_notes(given: Mapping[str, Any], config: SearchConfig) -> Iterator[str]:
    """`given`: the section that `config` was read from."""
    is_model_based = config.name in MODEL_BASED
    if config.is_halving and config.order == ARRIVAL and config.cohort is not None:
        yield f"searcher.cohort: {config.cohort} has no effect: order: arrival has no cohorts"
    if config.is_halving and config.order == EXACT and config.stop_once is False:
        yield "searcher.stop_once: false has no effect: it needs order: arrival"
    if is_model_based and config.order == ARRIVAL:
        yield f"searcher.order: arrival has no effect: {config.name} waits for whole cohorts"
    size = config.cohort or COHORT
    if is_model_based and given.get("max_concurrent_trials") and config.max_concurrent_trials > size:
        yield (
            f"searcher.max_concurrent_trials: {config.max_concurrent_trials} has no effect: "
            f"{config.name} trains a cohort of {size} trials at a time; searcher.cohort changes that"
        )
    dropped = [each for each in given.get("lengths") or () if each not in config.lengths]
    if dropped:
        yield f"searcher.lengths: {dropped} have no effect: a trial ends at {config.max_length} {config.unit}"
