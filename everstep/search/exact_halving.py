"""Halving that does not depend on timing: `order: exact`.

Trials are numbered before any of them starts, and lower numbers start first. Each bracket is cut into cohorts by
number. A cohort's rung is decided when all its members have a result there or are over; the best by (metric, number)
continue. So the same trials train to the same lengths with one slot or a hundred, no matter what dies.

The number that continues from a cohort is the increase of floor(trials so far / divisor), so in total as many trials
train to each length as in one large cohort.

Results are kept by length, and decisions depend on nothing else. They may arrive in any order across trials, and more
than once."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from typing import Any

from everstep.search.config import SearchConfig
from everstep.search.events import INVALID_HP, TrainTo, TrialEnded, Validated, finite
from everstep.search.explained_rungs import (
    CUT,
    FELL,
    ON_ITS_WAY,
    PROMOTED,
    REACHED,
    UNDECIDED,
    ExplainedCohort,
    ExplainedRung,
    RungMember,
)
from everstep.search.method import (
    FAILED,
    MOST_REPLACEMENTS,
    REPLACED,
    STOPPED,
    TRAINING,
    WAITING,
    Method,
    TrialRecord,
    first_past,
    firsts_past,
    ordinal,
    shown,
    who_continues,
)
from everstep.search.rungs import Bracket, survivors
from everstep.search.space import Space

COHORT = 64  # at least this many trials, unless the file says otherwise


@dataclass(kw_only=True, slots=True)
class Cohort:
    """Trials of a bracket that are compared. `members`: numbers of those at `rung`; empty: decided to the end."""

    rung: int = 0
    members: list[int] = field(default_factory=list)
    num_unsettled: int = 0


class ExactHalving(Method):
    def __init__(self, config: SearchConfig, space: Space, seed: int) -> None:
        super().__init__(config, space, seed)
        self.brackets = config.brackets()
        self.num_places = sum(bracket.num_trials for bracket in self.brackets)
        self._at_once = config.max_concurrent_trials or sum(bracket.num_at_start for bracket in self.brackets)
        self._homes = _homes(self.brackets)  # of each number: bracket and position in it
        self._sizes = [cohort_sizes(bracket, config) for bracket in self.brackets]
        self._starts = [_running_sums(sizes) for sizes in self._sizes]
        self._quotas = [
            quotas(sizes, config.divisor, bracket) for sizes, bracket in zip(self._sizes, self.brackets, strict=True)
        ]
        self._cohorts = [[Cohort(num_unsettled=size) for size in sizes] for sizes in self._sizes]
        for number, home in enumerate(self._homes, start=1):
            self._cohort_of(*home)[0].members.append(number)
        self._next_place = 1
        self._promoted: list[int] = []  # may continue, but the maximum number is already training; a heap
        self._num_training = 0
        self._trained = 0

    # --- events

    def start(self) -> None:
        self._fill()

    def validated(self, trial: TrialRecord, event: Validated) -> None:
        """For each rung, the first result by length there or past it counts, until its cohort is decided. A script that
        does not wait at a rung may report it before the trial may continue: it counts then, so that it does not matter
        when the rung below is decided."""
        is_late = trial.is_over and (trial.last_length is None or event.length > trial.last_length)
        if trial.state not in (TRAINING, WAITING) or is_late:
            return
        ahead = {event.length: finite(event.metric)} | trial.ahead
        trial.ahead = firsts_past(ahead, self.brackets[trial.bracket].lengths[trial.rung :])
        if trial.target in trial.results:  # and not decided
            self._settle(trial)
        self._look_at(trial)
        self._fill()

    def ended(self, trial: TrialRecord, event: TrialEnded) -> None:
        self._look_at(trial)
        self._fill()

    # --- what one trial's facts mean

    def _look_at(self, trial: TrialRecord) -> None:
        """Settle the trial at its rung, if its result there is final."""
        if trial.state != TRAINING:
            return
        assert trial.target is not None
        if first_past(trial.ahead, trial.target):
            self._settle(trial)
            trial.state = WAITING
        elif trial.is_over and (trial.last_length is None or trial.last_length < trial.target):
            is_new = trial.rung == 0 and trial.num_replaced < MOST_REPLACEMENTS
            trial.state = REPLACED if trial.why == INVALID_HP and is_new else FAILED
        else:
            return
        self._num_training -= 1
        cohort, key = self._cohort_of(trial.bracket, self._homes[trial.place - 1][1])
        if trial.state == REPLACED:
            self._replace(trial, cohort)
            return
        self._trained += self._increment(trial)
        if trial.state == WAITING and trial.target == self.config.max_length:  # it is not compared with others
            metric = shown(trial.results[trial.target])
            self.stop(trial, f"{metric} at {trial.target} {self.config.unit}, the full length")
        cohort.num_unsettled -= 1
        if cohort.num_unsettled == 0:
            self._decide(cohort, trial.bracket, key)

    def _settle(self, trial: TrialRecord) -> None:
        assert trial.target is not None
        (trial.results[trial.target],) = first_past(trial.ahead, trial.target).values()

    def _replace(self, trial: TrialRecord, cohort: Cohort) -> None:
        number = trial.number + self.num_places  # not the next free one: that would depend on timing
        cohort.members[cohort.members.index(trial.number)] = number
        reason = f"instead of trial {trial.number}, whose hyperparameters were invalid"
        self._create(number, trial.place, reason).num_replaced = trial.num_replaced + 1

    # --- decisions

    def _decide(self, cohort: Cohort, bracket: int, key: int) -> None:
        lengths, unit = self.brackets[bracket].lengths, self.config.unit
        length = lengths[cohort.rung]
        members = [self.trials[number] for number in cohort.members]
        settled = [trial for trial in members if trial.state == WAITING]
        ranked = sorted(settled, key=lambda trial: self.rank(trial.results[length], trial.number))
        quota = 0 if cohort.rung == len(lengths) - 1 else self._quotas[bracket][cohort.rung][key]
        for place, trial in enumerate(ranked, start=1):
            if place > quota:
                text = f"{shown(trial.results[length])} is {ordinal(place)} of {len(members)} at {length} {unit}"
                self.stop(trial, f"{text}; {who_continues(quota)}")
            else:
                trial.rung, trial.target = cohort.rung + 1, lengths[cohort.rung + 1]
                trial.ahead = firsts_past(trial.ahead, lengths[trial.rung :])
                heapq.heappush(self._promoted, trial.number)
        cohort.members = [trial.number for trial in ranked[:quota]]
        cohort.rung, cohort.num_unsettled = cohort.rung + 1, len(cohort.members)

    def _promotion(self, trial: TrialRecord) -> str:
        bracket = self.brackets[trial.bracket]
        key = self._key_of(trial.bracket, self._homes[trial.place - 1][1])
        before = bracket.lengths[trial.rung - 1]
        metric = shown(trial.results[before])
        quota = self._quotas[trial.bracket][trial.rung - 1][key]
        best = "the best" if quota == 1 else f"among the best {quota}"
        return f"{metric} at {before} {self.config.unit} is {best} of its cohort"

    # --- what may train now

    def _fill(self) -> None:
        """Trials that continue come first, because they are nearer to their end; then new ones by number."""
        while self._num_training < self._at_once and (self._promoted or self.has_more()):
            if self._promoted:
                trial = self.trials[heapq.heappop(self._promoted)]
                trial.state = TRAINING
                self._num_training += 1
                if not trial.is_over and not first_past(trial.ahead, trial.target):
                    self.out.append(TrainTo(trial=trial.number, length=trial.target, reason=self._promotion(trial)))
                self._look_at(trial)
            else:
                number, self._next_place = self._next_place, self._next_place + 1
                self._create(number, number, f"trial {number} of {self.num_places}")

    def _create(self, number: int, place: int, reason: str) -> TrialRecord:
        bracket, _ = self._homes[place - 1]
        self._num_training += 1
        length = self.brackets[bracket].lengths[0]
        return self.create(number, place=place, length=length, bracket=bracket, reason=reason)

    def has_more(self) -> bool:
        return self._next_place <= self.num_places

    def finish_if_over(self) -> None:
        if not self._promoted:
            super().finish_if_over()

    # --- where a number belongs

    def _key_of(self, bracket: int, position: int) -> int:
        """The index of the cohort in its bracket."""
        return bisect_right(self._starts[bracket], position) - 1

    def _cohort_of(self, bracket: int, position: int) -> tuple[Cohort, int]:
        key = self._key_of(bracket, position)
        return self._cohorts[bracket][key], key

    # --- why

    def explain(self) -> list[ExplainedCohort]:
        homes: dict[tuple[int, int], list[TrialRecord]] = defaultdict(list)
        for _, trial in sorted(self.trials.items()):
            if trial.state != REPLACED:
                homes[trial.bracket, self._key_of(trial.bracket, self._homes[trial.place - 1][1])].append(trial)
        return [
            ExplainedCohort(
                bracket=bracket,
                cohort=key,
                num_trials=self._sizes[bracket][key],
                rungs=self._explained(bracket, key, trials),
            )
            for (bracket, key), trials in sorted(homes.items())
        ]

    def _explained(self, bracket: int, key: int, trials: list[TrialRecord]) -> list[ExplainedRung]:
        lengths, found = self.brackets[bracket].lengths, list[ExplainedRung]()
        for rung, length in enumerate(lengths):
            here = [trial for trial in trials if trial.rung >= rung]
            if not here:
                break
            is_decided = self._cohorts[bracket][key].rung > rung
            quota = 0 if rung == len(lengths) - 1 else self._quotas[bracket][rung][key]
            ranked = sorted(
                (trial for trial in here if length in trial.results),
                key=lambda trial: self.rank(trial.results[length], trial.number),
            )
            members = [
                RungMember(
                    trial=trial.number,
                    metric=trial.results[length],
                    outcome=_outcome(trial, rung, is_last=rung == len(lengths) - 1, has_result=True),
                    place=place if is_decided else 0,
                    compared=len(here) if is_decided else 0,
                )
                for place, trial in enumerate(ranked, start=1)
            ]
            members += [
                RungMember(trial=trial.number, metric=None, outcome=_outcome(trial, rung))
                for trial in here
                if length not in trial.results
            ]
            found.append(ExplainedRung(length=length, quota=quota, is_decided=is_decided, members=members))
        return found

    # --- progress and state

    def _increment(self, trial: TrialRecord) -> int:
        lengths = self.brackets[trial.bracket].lengths
        return lengths[trial.rung] - (lengths[trial.rung - 1] if trial.rung else 0)

    def progress(self) -> float:
        """The share of the planned length that has been trained."""
        if self.done is not None:
            return 1.0
        return min(1.0, self._trained / sum(planned_length(each, self.config.divisor) for each in self.brackets))

    def save_more(self) -> dict[str, Any]:
        cohorts = [[[each.rung, each.members, each.num_unsettled] for each in row] for row in self._cohorts]
        waiting = {"promoted": sorted(self._promoted), "num_training": self._num_training, "trained": self._trained}
        return {"next_place": self._next_place, "cohorts": cohorts, **waiting}

    def load_more(self, plain: Mapping[str, Any]) -> None:
        self._next_place, self._promoted = plain["next_place"], list(plain["promoted"])
        self._num_training, self._trained = plain["num_training"], plain["trained"]
        self._cohorts = [
            [Cohort(rung=rung, members=list(members), num_unsettled=left) for rung, members, left in row]
            for row in plain["cohorts"]
        ]


def _outcome(trial: TrialRecord, rung: int, *, is_last: bool = False, has_result: bool = False) -> str:
    if trial.rung > rung:
        return PROMOTED
    if trial.state == FAILED:
        return FELL
    if trial.state == STOPPED:
        return REACHED if is_last else CUT
    return UNDECIDED if has_result else ON_ITS_WAY


def cohort_sizes(bracket: Bracket, config: SearchConfig) -> list[int]:
    """Even sizes: one trial of each reaches the top, and there are enough to choose from."""
    wanted = config.cohort or max(COHORT, int(config.divisor ** (len(bracket.lengths) - 1)))
    number = max(1, bracket.num_trials // max(1, wanted))
    ends = [place * bracket.num_trials // number for place in range(number + 1)]
    return [end - start for start, end in pairwise(ends)]


def quotas(sizes: list[int], divisor: Fraction, bracket: Bracket) -> list[list[int]]:
    """How many trials continue, by rung and cohort."""
    totals = [survivors(total, divisor, len(bracket.lengths)) for total in _running_sums([*sizes, 0])[1:]]
    return [
        [after[rung] - before[rung] for before, after in pairwise([(0,) * len(bracket.lengths), *totals])]
        for rung in range(1, len(bracket.lengths))
    ]


def planned_length(bracket: Bracket, divisor: Fraction) -> int:
    """The length that all trials of the bracket train together."""
    numbers = (*survivors(bracket.num_trials, divisor, len(bracket.lengths)), 0)
    return sum(
        (number - after) * length for (number, after), length in zip(pairwise(numbers), bracket.lengths, strict=True)
    )


def _homes(brackets: tuple[Bracket, ...]) -> list[tuple[int, int]]:
    """Bracket and position of each number: brackets take turns in proportion to their sizes."""
    common = math.lcm(*(bracket.num_trials for bracket in brackets))
    order = [
        ((2 * position + 1) * (common // bracket.num_trials), place, position)
        for place, bracket in enumerate(brackets)
        for position in range(bracket.num_trials)
    ]
    return [(place, position) for _, place, position in sorted(order)]


def _running_sums(sizes: list[int]) -> list[int]:
    """For each size, the sum of those before it."""
    sums, total = [], 0
    for size in sizes:
        sums.append(total)
        total += size
    return sums
