"""All trials of an experiment as columns, and which hyperparameters its search varies. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from everstep import wire
from everstep.coordinator.experiments.facts import Experiment, Trial
from everstep.coordinator.experiments.seam import SlotHolder
from everstep.coordinator.experiments.views import trial_view
from everstep.search.config import is_smaller_better, read_searcher
from everstep.search.draws import power
from everstep.search.read_space import read_space
from everstep.search.space import AnyLeaf, Choice, Factors, Powers, Real, Space, Whole

_MOST_NAMES = 100  # of hyperparameters that a search program has invented


def trial_columns(
    facts: Experiment, trials: Sequence[Trial], holder: SlotHolder, searched: Sequence[wire.SearchedHyperparameter],
    *, last_event: int,
) -> wire.TrialColumns:  # fmt: skip
    views = [trial_view(each, holder, facts.state) for each in trials]
    return wire.TrialColumns(
        experiment=facts.number,
        last_event=last_event,
        metric=str(facts.spec.searcher.get("metric", "")),
        smaller_is_better=is_smaller_better(facts.spec.searcher),
        unit=read_searcher(facts.spec.searcher).unit,
        searched=list(searched),
        trials=[each.trial for each in views],
        ids=[each.trial_id for each in views],
        states=[each.state for each in views],
        reasons=[each.reason for each in views],
        brackets=[each.bracket for each in views],
        targets=[each.target for each in views],
        lengths=[each.length for each in views],
        latest=[each.latest for each in views],
        best=[each.best for each in views],
        best_lengths=[each.best_length for each in views],
        slots=[each.num_slots for each in views],
        restarts=[each.num_restarts for each in views],
        batches=[each.batches for each in views],
        created_at=[each.created_at for each in views],
        started_at=[each.started_at for each in views],
        ended_at=[each.ended_at for each in views],
        hparams={each.name: [value_at(trial.hparams, each.name) for trial in trials] for each in searched},
    )


def searched_hyperparameters(spec: wire.ExperimentSpec, trials: Iterable[Trial]) -> list[wire.SearchedHyperparameter]:
    """Those that the space varies; of a search program, which need not keep to it, those that differ."""
    space = read_space(spec.hyperparameters, num_micro_batches=spec.num_micro_batches)
    found = [_searched(".".join(path), leaf) for path, leaf in space.searched()]
    return found or _differing(space, trials)


def searched_names(hyperparameters: Mapping[str, Any]) -> list[str]:
    return [".".join(path) for path, _ in read_space(hyperparameters).searched()]


def _searched(name: str, leaf: AnyLeaf) -> wire.SearchedHyperparameter:
    if isinstance(leaf, Choice):
        return wire.SearchedHyperparameter(name=name, kind="choice", values=list(leaf.values))
    if isinstance(leaf, Powers):
        ends = sorted(power(leaf.base, exponent) for exponent in (leaf.low, leaf.high))
        return wire.SearchedHyperparameter(name=name, kind="log", least=ends[0], most=ends[1])
    assert isinstance(leaf, Whole | Real | Factors)
    kind = {Whole: "int", Real: "double", Factors: "log"}[type(leaf)]
    return wire.SearchedHyperparameter(name=name, kind=kind, least=float(leaf.low), most=float(leaf.high))


def _differing(space: Space, trials: Iterable[Trial]) -> list[wire.SearchedHyperparameter]:
    known = {".".join(path) for path, _ in space.leaves}
    values: dict[str, list[Any]] = {}
    for trial in trials:
        for name, value in flat(trial.hparams):
            values.setdefault(name, []).append(value)
    names = [name for name, each in values.items() if name not in known or any(value != each[0] for value in each)]
    return [_invented(name, values[name]) for name in sorted(names)[:_MOST_NAMES]]


def _invented(name: str, values: Sequence[Any]) -> wire.SearchedHyperparameter:
    if all(isinstance(each, int | float) and not isinstance(each, bool) for each in values):
        kind = "int" if all(isinstance(each, int) for each in values) else "double"
        return wire.SearchedHyperparameter(name=name, kind=kind, least=float(min(values)), most=float(max(values)))
    different: list[Any] = []
    for each in values:
        if each not in different:
            different.append(each)
    return wire.SearchedHyperparameter(name=name, kind="choice", values=different)


def flat(value: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Nested names, joined with dots."""
    found: list[tuple[str, Any]] = []
    for name, each in value.items():
        found += flat(each, f"{prefix}{name}.") if isinstance(each, Mapping) else [(f"{prefix}{name}", each)]
    return found


def value_at(hparams: Mapping[str, Any], name: str) -> Any:
    """By a nested name; None if there is none."""
    found: Any = hparams
    for part in name.split("."):
        if not isinstance(found, Mapping) or part not in found:
            return hparams.get(name)
        found = found[part]
    return found
