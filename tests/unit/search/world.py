"""A world for searches: trials that train, fail and report, and posts that come late, twice or in any order."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b

from everstep.search.config import SearchConfig
from everstep.search.events import (
    Ask,
    CreateTrial,
    Event,
    StopTrial,
    Suggested,
    TrainTo,
    TrialEnded,
    Validated,
    event_from_plain,
    to_plain,
)
from everstep.search.search import Search
from everstep.search.space import Space


def noise(*key: object) -> float:
    """At least 0 and less than 1; the same for the same key."""
    return int.from_bytes(blake2b(repr(key).encode(), digest_size=6).digest(), "big") / 2**48


def made_up(ask: Ask) -> dict:
    """A sample for each trial that depends on all results so far."""
    return {str(number): {"x": noise(number, ask.results)} for number in ask.trials}


@dataclass(kw_only=True)
class World:
    """`metric(trial, length)` and `fate(trial, length)` are what training is: the same whenever it is done.
    A fate is None, or why the trial ends before that length ("itself": by itself)."""

    config: SearchConfig
    space: Space
    metric: Callable[[int, int], float]
    fate: Callable[[int, int], str | None] = lambda trial, length: None
    model: Callable[[Ask], dict] = made_up
    seed: int = 7
    period: int | None = None  # validates at multiples of it, not where it is asked to
    order: random.Random | None = None  # None: posts arrive one by one as they are made
    operations: list = field(default_factory=list)
    posts: list[Event] = field(default_factory=list)

    def run(self) -> Search:
        self.search = Search.begin(self.config, self.space, self.seed)
        self.reached: dict[int, int] = {}
        self.over: set[int] = set()
        self.sent: list[Event] = []
        self._take(self.search.start())
        while self.posts:
            self._deliver()
        return self.search

    def _deliver(self) -> None:
        if self.order is None:
            self._take(self.search.apply(self.posts.pop(0)))
            return
        event = self.posts.pop(self.order.randrange(len(self.posts)))
        chance = self.order.random()
        if chance < 0.1:
            self.posts.append(event)  # dropped, and sent again later
            return
        if chance < 0.2:
            self.posts.append(event)  # its answer was lost: it comes twice
        elif chance < 0.3 and self.sent:
            self._take(self.search.apply(self.order.choice(self.sent)))
        elif chance < 0.4:
            self._restart()
        self.sent.append(event)
        self._take(self.search.apply(event_from_plain(json.loads(json.dumps(to_plain(event))))))

    def _restart(self) -> None:
        plain = json.loads(json.dumps(self.search.save(), allow_nan=False))
        self.search = Search.read(self.config, self.space, self.seed, plain)

    def _take(self, operations: list) -> None:
        self.operations += operations
        for each in operations:
            if isinstance(each, TrainTo):
                self._train(each.trial, each.length or 1)
            elif isinstance(each, StopTrial):
                self._end(each.trial, None)
            elif isinstance(each, Ask):
                self.posts.append(Suggested(cohort=each.cohort, hparams=self.model(each)))

    def _train(self, trial: int, length: int) -> None:
        if trial in self.over:
            return
        if why := self.fate(trial, length):
            self._end(trial, None if why == "itself" else why)
            return
        for reached in self._validations(self.reached.get(trial, 0), length):
            self.reached[trial] = reached
            self.posts.append(Validated(trial=trial, length=reached, metric=self.metric(trial, reached)))
        if self.config.max_length is None:
            self._end(trial, None)

    def _validations(self, reached: int, length: int) -> list[int]:
        """Where a trial is validated on its way to a length. It waits at the first place that is not before it."""
        if self.period is None:
            return [length]
        places = []
        while reached < length:
            reached += self.period
            places.append(reached)
        return places

    def _end(self, trial: int, why: str | None) -> None:
        if trial not in self.over:
            self.over.add(trial)
            self.posts.append(TrialEnded(trial=trial, why=why, length=self.reached.get(trial, 0)))

    @property
    def created(self) -> dict[int, CreateTrial]:
        made = [each for each in self.operations if isinstance(each, CreateTrial)]
        assert len({each.trial for each in made}) == len(made)
        return {each.trial: each for each in made}
