"""A search: a fold over events. The same events give the same state and the same operations.

    search = Search.begin(config, space, seed=7)
    operations = search.start()
    operations = search.apply(Validated(trial=1, length=64, metric=0.31))
    text = json.dumps(search.save())                                  # and Search.read(config, space, 7, plain)

Pure. A bad event raises and changes nothing. Repeated events change nothing."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from everstep.errors import UsageError
from everstep.search.arrival_halving import ArrivalHalving
from everstep.search.config import CUSTOM, EXACT, MODEL_BASED, SearchConfig
from everstep.search.custom import Custom
from everstep.search.events import WHYS, Advanced, Ask, Event, Operation, Programmed, Suggested, TrialEnded, Validated
from everstep.search.exact_halving import ExactHalving
from everstep.search.explained_rungs import ExplainedCohort
from everstep.search.method import Method, TrialRecord
from everstep.search.model_based import ModelBased
from everstep.search.plain import Plain
from everstep.search.space import Space


class Search:
    def __init__(self, method: Method, *, is_started: bool = False) -> None:
        self._method = method
        self._is_started = is_started

    @classmethod
    def begin(cls, config: SearchConfig, space: Space, seed: int) -> Search:
        return cls(_kind(config)(config, space, seed))

    @classmethod
    def read(cls, config: SearchConfig, space: Space, seed: int, plain: Mapping[str, Any]) -> Search:
        """Restore a search from what `save` returned."""
        search = cls.begin(config, space, seed)
        search._is_started = plain["is_started"]
        search._method.load(copy.deepcopy(plain))
        return search

    def save(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return copy.deepcopy({"is_started": self._is_started, **self._method.save()})

    def start(self) -> list[Operation]:
        if self._is_started:
            return []
        self._is_started = True
        self._method.start()
        return self._take()

    def apply(self, event: Event) -> list[Operation]:
        """The operations that follow. Events of a trial that was not created are errors."""
        if isinstance(event, Suggested):
            self._method.suggested(event)
            return self._take()
        if isinstance(event, Programmed):
            self._method.programmed(event)
            return self._take()
        trial = self._trial(event.trial)
        if isinstance(event, Advanced):
            if math.isnan(event.fraction):
                raise UsageError(f"trial {event.trial}: progress {event.fraction}", code="search-event")
            trial.fraction = trial.fraction if trial.is_over else min(max(event.fraction, 0.0), 1.0)
        elif isinstance(event, Validated):
            if event.length < 0:
                raise UsageError(f"trial {event.trial}: validated at {event.length}", code="search-event")
            self._method.validated(trial, event)
        elif not trial.is_over:
            self._end(trial, event)
        return self._take()

    def _end(self, trial: TrialRecord, event: TrialEnded) -> None:
        if event.why is not None and event.why not in WHYS:
            message = f"trial {event.trial} ended with {event.why!r}, which is not a known reason"
            raise UsageError(message, hint=f"use one of {', '.join(WHYS)}", code="search-event")
        trial.is_over, trial.why, trial.last_length = True, event.why, event.length
        self._method.num_over += 1
        self._method.ended(trial, event)

    def _trial(self, number: int) -> TrialRecord:
        trial = self._method.trials.get(number)
        if trial is None:
            raise UsageError(
                f"trial {number} does not exist; {len(self._method.trials)} trials were created",
                code="search-trial-unknown",
            )
        return trial

    def _take(self) -> list[Operation]:
        if self._is_started:
            self._method.finish_if_over()
        out, self._method.out = self._method.out, []
        return out

    @property
    def is_done(self) -> bool:
        return self._method.done is not None

    @property
    def pending_ask(self) -> Ask | None:
        """The model's question that still needs an answer (`Suggested`), even after `read`."""
        return None if self.is_done else self._method.pending_ask()

    @property
    def after_event(self) -> int:
        """The last event for which a search program's operations were applied."""
        return self._method.after_event()

    def checkpoint_of(self, trial: int) -> Mapping[str, Any] | None:
        """The checkpoint that this trial starts from, instead of the experiment's."""
        return self._method.checkpoint_of(trial)

    def closed_by(self, operations: Sequence[Mapping[str, Any]]) -> set[int]:
        """The trials that these operations of a search program close, without asking for a further length."""
        return self._method.closed_by(operations)

    @property
    def progress(self) -> float:
        """How much of the search is done, from 0 to 1."""
        return self._method.progress()

    @property
    def best(self) -> tuple[int, float, int] | None:
        """Trial, metric and length of the best result. Of equal results, the one with the lower trial number."""
        return self._method.best()

    def explain(self) -> list[ExplainedCohort]:
        """Who was compared at each rung, by which numbers, and who continued. Empty: no trials are compared."""
        return self._method.explain()

    @property
    def targets(self) -> dict[int, int | None]:
        """The length to train to, by trial that is not over."""
        return {number: trial.target for number, trial in self._method.trials.items() if not trial.is_over}


def fold(config: SearchConfig, space: Space, seed: int, events: Iterable[Event]) -> Search:
    search = Search.begin(config, space, seed)
    search.start()
    for event in events:
        search.apply(event)
    return search


def _kind(config: SearchConfig) -> type[Method]:
    if config.is_halving:
        return ExactHalving if config.order == EXACT else ArrivalHalving
    if config.name == CUSTOM:
        return Custom
    return ModelBased if config.name in MODEL_BASED else Plain
