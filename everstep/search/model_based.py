"""Searchers whose samples depend on results: TPE, CMA-ES, GP and QMC, which a process of its own runs.

Trials come in cohorts. The model is asked for a whole cohort once all earlier trials are over, and gets their last
results in the order of their numbers. So its answer depends on (seed, number, results of earlier cohorts): not on
which trial was first, nor on the number of slots. The answer is an event like any other: a search that is read again
does not ask again."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from everstep.errors import UsageError
from everstep.search.config import SearchConfig
from everstep.search.events import Ask, Suggested, TrialEnded, Validated, finite
from everstep.search.method import STOPPED, TRAINING, Method, TrialRecord, first_past
from everstep.search.space import Space

COHORT = 8  # trials, unless the file sets it; a fixed number, so that it does not depend on the slots


class ModelBased(Method):
    counts_past = True

    def __init__(self, config: SearchConfig, space: Space, seed: int) -> None:
        super().__init__(config, space, seed)
        self._size = config.cohort or COHORT
        self._at_once = config.max_concurrent_trials or self._size
        self._asked = 0  # cohorts
        self._samples: dict[int, Mapping[str, Any]] = {}  # of trials that are still to be created
        self._num_waiting = 0  # trials of this cohort without a final result

    def start(self) -> None:
        self._ask()

    def _ask(self) -> None:
        self._asked += 1
        ask = self.pending_ask()
        assert ask is not None
        self._num_waiting = len(ask.trials)
        self.out.append(ask)

    def pending_ask(self) -> Ask | None:
        first = (self._asked - 1) * self._size + 1
        if self._asked == 0 or self._samples or first <= len(self.trials):
            return None
        numbers = range(first, min(first + self._size - 1, self.config.max_trials) + 1)
        results = tuple((each.number, _last(each)) for _, each in sorted(self.trials.items()))
        reason = f"{self.config.name} chooses trials {numbers[0]} to {numbers[-1]} from {len(results)} results"
        return Ask(
            cohort=self._asked - 1, trials=tuple(numbers), cohort_size=self._size, results=results, reason=reason
        )

    def suggested(self, event: Suggested) -> None:
        if event.cohort != self._asked - 1 or self.pending_ask() is None:
            return  # answered already
        first = event.cohort * self._size + 1
        wanted = [str(number) for number in range(first, first + self._num_waiting)]
        if set(event.hparams) != set(wanted):
            message = f"cohort {event.cohort}: samples for trials {', '.join(event.hparams)}, not {', '.join(wanted)}"
            raise UsageError(message, code="search-suggestion")
        self._samples = {int(number): hparams for number, hparams in event.hparams.items()}
        self._fill()

    def hparams(self, number: int) -> Mapping[str, Any]:
        return self._samples.pop(number)

    def validated(self, trial: TrialRecord, event: Validated) -> None:
        limit = self.config.max_length
        results = {event.length: finite(event.metric)} | trial.results
        last = max(results)
        trial.results = first_past(results, limit) or {last: results[last]}
        if limit is not None and event.length >= limit and trial.state == TRAINING:
            self.stop(trial, f"trained to {limit} {self.config.unit}, the full length")
        self._settle(trial)

    def ended(self, trial: TrialRecord, event: TrialEnded) -> None:
        trial.state = STOPPED
        self._settle(trial)
        self._fill()

    def _settle(self, trial: TrialRecord) -> None:
        if trial.fraction == 1.0 or not trial.is_over:
            return
        last = max(trial.results, default=0)
        if trial.last_length is None or trial.last_length <= last or (trial.target or math.inf) <= last:
            trial.fraction = 1.0
            self._num_waiting -= 1
            if self._num_waiting == 0 and self.has_more():
                self._ask()

    def _fill(self) -> None:
        for number in sorted(self._samples)[: max(0, self._at_once - (len(self.trials) - self.num_over))]:
            reason = f"trial {number} of {self.config.max_trials}, chosen by {self.config.name}"
            self.create(number, place=number, length=self.config.max_length, reason=reason)

    def has_more(self) -> bool:
        return bool(self._samples) or len(self.trials) < self.config.max_trials

    def finish_if_over(self) -> None:
        if self._num_waiting == 0:
            super().finish_if_over()

    def progress(self) -> float:
        return sum(trial.fraction for trial in self.trials.values()) / self.config.max_trials

    def save_more(self) -> dict[str, Any]:
        samples = [[number, dict(hparams)] for number, hparams in sorted(self._samples.items())]
        return {"asked": self._asked, "samples": samples, "num_waiting": self._num_waiting}

    def load_more(self, plain: Mapping[str, Any]) -> None:
        self._asked, self._num_waiting = plain["asked"], plain["num_waiting"]
        self._samples = dict(plain["samples"])


def _last(trial: TrialRecord) -> float | None:
    return trial.results[max(trial.results)] if trial.results and trial.why is None else None
