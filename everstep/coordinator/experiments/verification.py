"""Train a trial again to compare its digests: an unlisted experiment with one trial. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from everstep import wire
from everstep.coordinator.experiments.facts import Experiment, Trial
from everstep.errors import CONFLICT, Refused
from everstep.search.config import UNITS, read_searcher

LABEL = "verification"
_NOTHING = wire.CheckpointsKept(experiment_best=0, trial_best=0, trial_latest=0)


def verification(
    experiment: Experiment,
    trial: Trial,
    known: wire.TrialResults,
    request: str,
    *,
    begins_with: Mapping[str, Any],
) -> wire.ExperimentSpec:
    """The same code, hyperparameters, seed and lengths. `begins_with`: the checkpoint of its warm start."""
    if not known.results:
        text = f"trial {trial.number} of experiment {experiment.number} has no results to compare"
        raise Refused(text, status=CONFLICT, code="verify-without-results")
    spec, longest = experiment.spec, known.results[-1].length
    return replace(
        spec,
        request=request,
        name=f"verification of {trial.job}"[:256],
        description=f"trains trial {trial.number} of experiment {experiment.number} again",
        labels=[LABEL],
        notes="",
        scheduling=experiment.scheduling,  # it may be in another pool by now
        searcher=_searcher(spec, known, longest),
        hyperparameters=as_constants(trial.hparams),
        kept=_NOTHING,
        source_trial_id=0,
        source_checkpoint_uuid=begins_with.get("uuid", ""),
        is_paused=False,
        forked_from=experiment.number,
        verifies=trial.trial_id,
        trial_seed=trial.seed,
    )


def _searcher(spec: wire.ExperimentSpec, known: wire.TrialResults, longest: int) -> dict[str, Any]:
    """A single trial, validated at the same targets, up to the last one reached."""
    config = read_searcher(spec.searcher)
    section: dict[str, Any] = {
        "name": "single",
        "metric": config.metric,
        "smaller_is_better": config.smaller_is_better,
        "lengths": sorted({each for each in known.targets if each is not None and 0 < each <= longest}),
    }
    if longest and None not in known.targets:
        limit = max(section["lengths"], default=longest)
        section["max_length"] = {config.unit if config.unit in UNITS else UNITS[0]: limit}
    return section


def as_constants(hparams: Mapping[str, Any]) -> dict[str, Any]:
    """A space with a single point: these values."""
    return {name: {"type": "const", "val": value} for name, value in hparams.items()}
