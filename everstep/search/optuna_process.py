"""Optuna's samplers, asked through pipes: `python -m everstep.search.optuna_process [REQUESTS REPLIES]`.

One line of JSON comes in for each Ask, one goes out: through these two file descriptors, or else stdin and stdout.
The search itself imports neither Optuna nor numpy.

Optuna keeps what it has learned in memory. A process that is started later replays all earlier cohorts: it asks for
their samples again and reports their results. So an answer depends only on the question."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from everstep.search import draws
from everstep.search.events import Ask
from everstep.search.read_space import read_space
from everstep.search.space import AnyLeaf, Choice, Constant, Factors, Path, Powers, Real, Space, Whole, nested

Result = tuple[int, float | None]

PACKAGES = {"tpe": (), "cmaes": ("cmaes",), "gp": ("scipy", "torch"), "qmc": ("scipy",)}  # besides Optuna and numpy


def missing_packages(sampler: str) -> tuple[str, ...]:
    """The packages that the sampler needs and this Python does not have. Imports none of them."""
    needed = ("optuna", "numpy", *PACKAGES[sampler])
    return tuple(each for each in needed if importlib.util.find_spec(each) is None)


def question(ask: Ask, *, sampler: str, seed: int, smaller_is_better: bool, hyperparameters: Mapping[str, Any],
             num_micro_batches: int = 1) -> dict[str, Any]:  # fmt: skip
    """A question to the process. Plain data for JSON."""
    return {
        "sampler": sampler,
        "seed": seed,
        "smaller_is_better": smaller_is_better,
        "hyperparameters": dict(hyperparameters),
        "num_micro_batches": num_micro_batches,
        "cohort_size": ask.cohort_size,
        "trials": list(ask.trials),
        "results": [list(each) for each in ask.results],
    }


class Model:
    """A study of Optuna's, and the results it has seen."""

    def __init__(self, sampler: str, seed: int, smaller_is_better: bool, space: Space) -> None:
        import optuna

        self._optuna = optuna
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._space = space
        self._distributions = {_name(path): _distribution(leaf) for path, leaf in space.searched()}
        directions = optuna.study.StudyDirection
        direction = directions.MINIMIZE if smaller_is_better else directions.MAXIMIZE
        self._study = optuna.create_study(sampler=_sampler(sampler, seed), direction=direction)
        self._seen: list[Result] = []
        self._asked: list[Any] = []  # trials of the cohort that waits for its results

    def has_seen(self, results: Sequence[Result]) -> bool:
        """Whether these results contain all that this study has seen."""
        return self._seen == list(results[: len(self._seen)])

    def suggest(self, trials: Sequence[int], results: Sequence[Result], cohort_size: int) -> dict[str, Any]:
        while len(self._seen) < len(results):
            cohort = results[len(self._seen) : len(self._seen) + cohort_size]
            self._ask_for(len(cohort))
            for trial, (_, metric) in zip(self._asked, cohort, strict=True):
                if metric is None:
                    self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
                else:
                    self._study.tell(trial, metric)
            self._seen += cohort
            self._asked = []
        self._ask_for(len(trials))
        return {str(number): self._hparams(trial.params) for number, trial in zip(trials, self._asked, strict=True)}

    def _ask_for(self, number: int) -> None:
        while len(self._asked) < number:
            self._asked.append(self._study.ask(self._distributions))

    def _hparams(self, params: Mapping[str, Any]) -> dict[str, Any]:
        def value(path: Path, leaf: AnyLeaf) -> Any:
            if isinstance(leaf, Constant):
                return leaf.value
            found = params[_name(path)]
            return leaf.values[found] if isinstance(leaf, Choice) else found

        return nested((path, value(path, leaf)) for path, leaf in self._space.leaves)


def _name(path: Path) -> str:
    return json.dumps(path)


def _distribution(leaf: AnyLeaf) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(leaf, Choice):
        return CategoricalDistribution(range(len(leaf.values)))  # values may be lists, which Optuna does not take
    if isinstance(leaf, Whole):
        return IntDistribution(leaf.first, leaf.first + leaf.step * (leaf.size - 1), step=leaf.step)
    if isinstance(leaf, Real):
        return FloatDistribution(leaf.low, leaf.high)
    assert isinstance(leaf, Powers | Factors)
    ends = (leaf.low, leaf.high)
    if isinstance(leaf, Powers):
        ends = (draws.power(leaf.base, leaf.low), draws.power(leaf.base, leaf.high))
    return FloatDistribution(min(ends), max(ends), log=True)


def _sampler(name: str, seed: int) -> Any:
    from optuna import samplers

    seed = draws.draw(seed, 0, ("sampler", name)) >> 33
    if name == "tpe":
        return samplers.TPESampler(seed=seed, constant_liar=True)  # trials of a cohort keep away from each other
    if name == "cmaes":
        return samplers.CmaEsSampler(seed=seed)
    if name == "gp":
        return samplers.GPSampler(seed=seed)
    return samplers.QMCSampler(seed=seed, scramble=True)


def main() -> None:
    requests, replies = sys.stdin, sys.stdout
    if len(sys.argv) == 3:
        requests, replies = os.fdopen(int(sys.argv[1])), os.fdopen(int(sys.argv[2]), "w")
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")  # Optuna's warnings about samplers that it calls experimental
    model: Model | None = None
    kind = None
    for line in requests:
        asked = json.loads(line)
        results = [(number, metric) for number, metric in asked["results"]]
        same = [asked[key] for key in ("sampler", "seed", "smaller_is_better", "hyperparameters", "num_micro_batches")]
        if model is None or kind != same or not model.has_seen(results):
            space = read_space(asked["hyperparameters"], num_micro_batches=asked["num_micro_batches"])
            model, kind = Model(asked["sampler"], asked["seed"], asked["smaller_is_better"], space), same
        print(json.dumps(model.suggest(asked["trials"], results, asked["cohort_size"])), file=replies, flush=True)


if __name__ == "__main__":
    main()
