"""Reads what a search needs from a job file, Determined's or ours: its searcher, its space, its micro-batches.

Nothing else of the file is looked at, so a file whose entrypoint cannot run here still has a preview."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from everstep.errors import UsageError
from everstep.job_file.load import read_text
from everstep.job_file.overrides import apply
from everstep.job_file.tree import parse
from everstep.search.config import SearchConfig, read_searcher
from everstep.search.read_space import read_space
from everstep.search.space import Space


def read_search(path: Path, changes: Sequence[str] = ()) -> tuple[SearchConfig, Space]:
    """`changes` are those of `--set`."""
    tree = apply(parse(read_text(path), name=str(path)), changes)
    plain = tree.plain()
    if not isinstance(plain, dict) or plain.get("searcher") is None:
        hint = "searcher: {name: random, metric: loss, max_trials: 16}"
        raise UsageError(f"{path} has no searcher", hint=hint, code="searcher-missing")
    searcher = plain["searcher"]
    config = read_searcher({"name": searcher} if isinstance(searcher, str) else searcher)
    num_micro_batches = _num_micro_batches(plain.get("resources"))
    return config, read_space(plain.get("hyperparameters"), num_micro_batches=num_micro_batches)


def _num_micro_batches(resources: object) -> int:
    """Determined's slots_per_trial: a batch is cut into that many parts, however many slots serve it."""
    given = resources.get("slots_per_trial") if isinstance(resources, dict) else None
    if given is None:
        return 1
    if not isinstance(given, int) or isinstance(given, bool) or given < 0:
        message = f"resources.slots_per_trial: {given!r}"
        raise UsageError(message, hint="a whole number of slots", code="slots-per-trial")
    return max(1, given)
