"""Single, random and grid: every trial trains to its end; none is compared with another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everstep.errors import UsageError
from everstep.search import grid
from everstep.search.config import ARRIVAL, MOST_TRIALS, SearchConfig
from everstep.search.events import INVALID_HP, TrainTo, TrialEnded, Validated, finite
from everstep.search.method import MOST_REPLACEMENTS, REPLACED, STOPPED, TRAINING, Method, TrialRecord, first_past
from everstep.search.space import Space


class Plain(Method):
    """Trial n has sample n, or the n-th point from the end of the grid. A random trial with InvalidHP is replaced."""

    counts_past = True

    def __init__(self, config: SearchConfig, space: Space, seed: int) -> None:
        super().__init__(config, space, seed)
        self._axes = grid.axes(space) if config.name == "grid" else ()
        self.num_places = num_grid_trials(space) if config.name == "grid" else config.max_trials
        self._at_once = config.max_concurrent_trials or self.num_places
        self._next_place = 1

    def hparams(self, number: int) -> Mapping[str, Any]:
        if self.config.name == "grid":
            return grid.point(self._axes, self.num_places - number)
        return super().hparams(number)

    def start(self) -> None:
        self._fill()

    def validated(self, trial: TrialRecord, event: Validated) -> None:
        limit = self.config.max_length
        past = first_past({event.length: finite(event.metric)} | trial.results, limit)
        trial.results = {length: metric for length, metric in trial.results.items() if limit is None or length < limit}
        if limit is None or event.length < limit:
            keep_best(self, trial, event)
        trial.results |= past
        if trial.state != TRAINING or trial.target is None or event.length < trial.target:
            return
        if limit is not None and event.length >= limit:
            self.stop(trial, f"trained to {limit} {self.config.unit}, the full length")
        elif self.config.lengths:
            trial.target = self._next_length(event.length)
            self.out.append(TrainTo(trial=trial.number, length=trial.target, reason="the next length"))

    def _next_length(self, past: int) -> int | None:
        """The next length to validate at."""
        return next((each for each in self.config.lengths if each > past), self.config.max_length)

    def ended(self, trial: TrialRecord, event: TrialEnded) -> None:
        trial.fraction = 1.0
        if trial.state == TRAINING:
            trial.state = STOPPED
        if event.why == INVALID_HP and self.config.name == "random" and trial.num_replaced < MOST_REPLACEMENTS:
            trial.state, trial.fraction = REPLACED, 0.0
            number = len(self.trials) + 1 if self.config.order == ARRIVAL else trial.number + self.num_places
            again = self.create(
                number,
                place=trial.place,
                length=self.config.max_length,
                reason=f"instead of trial {trial.number}, whose hyperparameters were invalid",
            )
            again.num_replaced = trial.num_replaced + 1
        self._fill()

    def has_more(self) -> bool:
        return self._next_place <= self.num_places

    def _fill(self) -> None:
        running = len(self.trials) - self.num_over
        while self.has_more() and running < self._at_once:
            number = len(self.trials) + 1 if self.config.order == ARRIVAL else self._next_place
            reason = f"trial {self._next_place} of {self.num_places}"
            self.create(number, place=self._next_place, length=self._next_length(0), reason=reason)
            self._next_place, running = self._next_place + 1, running + 1

    def progress(self) -> float:
        counted = [trial for trial in self.trials.values() if trial.state != REPLACED]
        known = len(counted) if self.config.order == ARRIVAL else self.num_places
        return sum(trial.fraction for trial in counted) / known if known else 0.0

    def save_more(self) -> dict[str, Any]:
        return {"next_place": self._next_place}

    def load_more(self, plain: Mapping[str, Any]) -> None:
        self._next_place = plain["next_place"]


def keep_best(method: Method, trial: TrialRecord, event: Validated) -> None:
    """Uses only the best result of each trial, so the order of results does not matter."""
    known = [(method.rank(metric, length), length, metric) for length, metric in trial.results.items()]
    metric = finite(event.metric)
    if metric is not None:
        _, length, metric = min([*known, (method.rank(metric, event.length), event.length, metric)])
        trial.results = {length: metric}


def num_grid_trials(space: Space) -> int:
    number = grid.num_points(grid.axes(space))
    if not 1 <= number <= MOST_TRIALS:
        found = f"{number} trials, more than {MOST_TRIALS}" if number else "no trials"
        hint = "use searcher.name: random with max_trials" if number else "add hyperparameters, or use name: single"
        message = f"searcher: a grid over {len(space.leaves)} hyperparameters has {found}"
        raise UsageError(message, hint=hint, code="search-grid-size")
    return number
