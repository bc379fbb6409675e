"""A new experiment from the file of an earlier one: the same code, a changed file."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from everstep.job_file.experiment import LoadedExperiment, load_experiment
from everstep.job_file.tree import dump, parse
from everstep.wire.experiments import ExperimentSpec


def reread(
    written: str, experiment: int, changes: Sequence[str] = (), content: Mapping[str, Any] | None = None
) -> LoadedExperiment:
    """The file of an experiment, read again. `content`: keys that replace those of the file."""
    if content is not None:
        written = dump(_merged(parse(written, name=f"experiment {experiment}").plain(), content))
    with tempfile.TemporaryDirectory(prefix="everstep-") as folder:  # read as the file was: by its text
        path = Path(folder) / f"experiment-{experiment}.yaml"
        path.write_text(written)
        return load_experiment(path, changes)


def with_code_of(new: ExperimentSpec, old: ExperimentSpec) -> ExperimentSpec:
    order = {**new.order, "code": old.order.get("code", ""), "workdir": old.order.get("workdir", "")}
    return replace(new, order=order)


def as_fork(spec: ExperimentSpec, experiment: int, request: str, *, is_paused: bool = False) -> ExperimentSpec:
    """Of this experiment. It verifies nothing, even if that one did."""
    return replace(spec, request=request, forked_from=experiment, is_paused=is_paused, verifies=0, trial_seed=None)


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` over `below`, map by map."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = _merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged
