"""Halving as results arrive: `order: arrival`, the rule of Determined 0.38, and the one before it.

Each result is compared with the earlier ones: its trial continues if it is among the best 1/divisor of its rung so far,
so the first always continues. Early results decide, so the same search has different winners on different machines.
`stop_once: false` is the rule before 0.38: a trial that is not among the best waits, and continues once enough results
have arrived.

Unlike Determined: a stopped trial's later results are ignored, a trial that ends by itself makes room for the next
one, and a metric that is not finite is the worst value instead of the end of the experiment."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
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
from everstep.search.space import Space

Rank = tuple[bool, float]  # whether there is no finite metric, and the metric, smaller is better


@dataclass(kw_only=True, slots=True)
class Rung:
    """Results so far, the best first. `num_training`: how many trials are on their way to it."""

    length: int
    ranks: list[Rank] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    promoted: set[int] = field(default_factory=set)
    num_training: int = 0
    compared: dict[int, tuple[int, int]] = field(default_factory=dict)  # by trial: its place, and among how many then

    def insert(self, rank: Rank, number: int, *, is_before_equals: bool) -> int:
        place = (bisect_left if is_before_equals else bisect_right)(self.ranks, rank)
        self.ranks.insert(place, rank)
        self.numbers.insert(place, number)
        self.compared[number] = place + 1, len(self.numbers)
        return place

    def remove(self, number: int) -> None:
        if number in self.numbers:
            place = self.numbers.index(number)
            del self.numbers[place], self.ranks[place], self.compared[number]


class ArrivalHalving(Method):
    def __init__(self, config: SearchConfig, space: Space, seed: int) -> None:
        super().__init__(config, space, seed)
        self.brackets = config.brackets()
        self.rungs = [[Rung(length=length) for length in bracket.lengths] for bracket in self.brackets]
        self._num_counted = [0] * len(self.brackets)  # trials that were created and not replaced

    def start(self) -> None:
        for place, bracket in enumerate(self.brackets):
            for _ in range(bracket.num_at_start):
                self._create(place, f"one of the first {bracket.num_at_start}")

    def validated(self, trial: TrialRecord, event: Validated) -> None:
        if trial.is_over or trial.state not in (TRAINING, WAITING):
            return
        metric = finite(event.metric)
        if self.config.is_promoting:
            ahead = {event.length: metric} | trial.ahead
            trial.ahead = firsts_past(ahead, self.brackets[trial.bracket].lengths[trial.rung :])
            self._look_at(trial)
        else:
            self._pass_rungs(trial, event.length, metric)

    def ended(self, trial: TrialRecord, event: TrialEnded) -> None:
        if event.why == INVALID_HP and trial.num_replaced < MOST_REPLACEMENTS:
            if trial.state == TRAINING:
                self.rungs[trial.bracket][trial.rung].num_training -= 1
            trial.state = REPLACED
            self._num_counted[trial.bracket] -= 1
            for rung in self.rungs[trial.bracket]:
                rung.remove(trial.number)
            again = self._create(trial.bracket, f"instead of trial {trial.number}, whose hyperparameters were invalid")
            again.num_replaced = trial.num_replaced + 1
        elif trial.state == TRAINING and self.config.is_promoting:
            self._promote(trial, None)
        elif trial.state == TRAINING:
            trial.state = STOPPED
            if event.why is not None:
                self.rungs[trial.bracket][trial.rung].insert((True, 0.0), trial.number, is_before_equals=True)
            self._create_next(trial.bracket, f"trial {trial.number} ended before {self._length(trial)}")

    # --- Determined 0.38

    def _pass_rungs(self, trial: TrialRecord, length: int, metric: float | None) -> None:
        """One result may pass several rungs."""
        rungs, reason = self.rungs[trial.bracket], ""
        while length >= (rung := rungs[trial.rung]).length:
            trial.results[rung.length] = metric
            place = rung.insert(self.rank(metric, 0)[:2], trial.number, is_before_equals=True)
            quota = max(1, int(len(rung.numbers) / self.config.divisor))
            end = "the full length" if rung is rungs[-1] else who_continues(quota)
            of_all = f"{ordinal(place + 1)} of {len(rung.numbers)} so far"
            reason = f"{shown(metric)} is {of_all} at {self._length(trial)}; {end}"
            if rung is rungs[-1] or place >= quota:
                self.stop(trial, reason)
                self._create_next(trial.bracket, f"trial {trial.number} was stopped")
                return
            trial.rung += 1
        if reason:
            trial.target = rung.length
            self.out.append(TrainTo(trial=trial.number, length=rung.length, reason=reason))

    # --- before 0.38

    def _look_at(self, trial: TrialRecord) -> None:
        """A trial that has reached its rung on its way to an earlier one does not report there again."""
        if trial.state == TRAINING:
            for metric in first_past(trial.ahead, self.rungs[trial.bracket][trial.rung].length).values():
                self._promote(trial, metric)

    def _promote(self, trial: TrialRecord, metric: float | None) -> None:
        rungs = self.rungs[trial.bracket]
        rung = rungs[trial.rung]
        rung.num_training -= 1
        trial.state = WAITING
        trial.results[rung.length] = metric
        promoted: TrialRecord | None = None
        if rung is rungs[-1]:
            rung.insert(self.rank(metric, 0)[:2], trial.number, is_before_equals=False)
            self.stop(trial, f"{shown(metric)} at {self._length(trial)}, the full length")
        else:
            promoted = self._next_to_promote(rung, trial, metric)
        if promoted is not None:
            reason = (
                f"{shown(promoted.results[rung.length])} is among the best 1/{self.config.divisor} at {rung.length}"
            )
            promoted.rung, promoted.target = promoted.rung + 1, rungs[promoted.rung + 1].length
            promoted.state = TRAINING
            rungs[promoted.rung].num_training += 1
            if first_past(promoted.ahead, promoted.target):
                self._look_at(promoted)
                return
            if promoted.is_over:  # as if it had trained on and come out worst
                self._promote(promoted, None)
                return
            self.out.append(
                TrainTo(trial=promoted.number, length=promoted.target, reason=f"{reason} {self.config.unit}")
            )
        else:
            self._create_next(trial.bracket, f"trial {trial.number} waits at {self._length(trial)}")
        if len(rungs[0].numbers) == self.brackets[trial.bracket].num_trials:
            self._close_out(trial.bracket)

    def _next_to_promote(self, rung: Rung, trial: TrialRecord, metric: float | None) -> TrialRecord | None:
        """The new trial, or a waiting one that now continues because of it."""
        before, after = (int((len(rung.numbers) + more) / self.config.divisor) for more in (0, 1))
        place = rung.insert(self.rank(metric, 0)[:2], trial.number, is_before_equals=False)
        number = trial.number if place < after else rung.numbers[before] if after != before else None
        if number is None or number in rung.promoted:
            return None
        rung.promoted.add(number)
        return self.trials[number]

    def _close_out(self, bracket: int) -> None:
        """Without newcomers, no trial can overtake those that wait at rungs."""
        for rung in self.rungs[bracket]:
            if rung.num_training:
                break
            for number in rung.numbers:
                trial = self.trials[number]
                if number not in rung.promoted and trial.state == WAITING:
                    self.stop(
                        trial, f"{shown(trial.results[rung.length])} at {self._length(trial)}; no more trials continue"
                    )

    # --- both

    def _length(self, trial: TrialRecord) -> str:
        return f"{self.rungs[trial.bracket][trial.rung].length} {self.config.unit}"

    def _create(self, bracket: int, reason: str) -> TrialRecord:
        number = len(self.trials) + 1
        self._num_counted[bracket] += 1
        self.rungs[bracket][0].num_training += 1
        return self.create(number, place=number, length=self.rungs[bracket][0].length, bracket=bracket, reason=reason)

    def _create_next(self, bracket: int, reason: str) -> None:
        if self._num_counted[bracket] < self.brackets[bracket].num_trials:
            self._create(bracket, reason)

    def has_more(self) -> bool:
        """A trial is created when another stops, never by itself."""
        return False

    def progress(self) -> float:
        """Counted as Determined counts it."""
        shares = []
        for place, (bracket, rungs) in enumerate(zip(self.brackets, self.rungs, strict=True)):
            known = len(rungs[0].numbers)
            share = known / (1.2 * bracket.num_trials)
            if known == bracket.num_trials:
                over = sum(
                    each.is_over and each.bracket == place and each.state != REPLACED for each in self.trials.values()
                )
                share = max(share, over / bracket.num_trials)
            shares.append(share)
        return sum(shares) / len(shares)

    def explain(self) -> list[ExplainedCohort]:
        """Each bracket is one cohort: a trial is compared with those that came before it."""
        return [
            ExplainedCohort(
                bracket=place,
                cohort=0,
                num_trials=bracket.num_trials,
                rungs=[
                    self._explained(place, index)
                    for index, rung in enumerate(self.rungs[place])
                    if rung.numbers or any(self._on_their_way(place, index))
                ],
            )
            for place, bracket in enumerate(self.brackets)
        ]

    def _on_their_way(self, bracket: int, index: int) -> Iterator[int]:
        for number, trial in sorted(self.trials.items()):
            if (trial.bracket, trial.rung, trial.state) == (bracket, index, TRAINING):
                yield number

    def _explained(self, bracket: int, index: int) -> ExplainedRung:
        rung, is_last = self.rungs[bracket][index], index == len(self.rungs[bracket]) - 1
        members = []
        for number in (*rung.numbers, *self._on_their_way(bracket, index)):
            trial = self.trials[number]
            place, compared = rung.compared.get(number, (0, 0))
            metric, outcome = trial.results.get(rung.length), self._outcome(trial, index, rung, is_last=is_last)
            members.append(RungMember(trial=number, metric=metric, outcome=outcome, place=place, compared=compared))
        quota = 0 if is_last else int(len(rung.numbers) / self.config.divisor)
        return ExplainedRung(
            length=rung.length,
            quota=quota if is_last or self.config.is_promoting else max(1, quota),
            is_decided=not any(each.outcome in (UNDECIDED, ON_ITS_WAY) for each in members),
            members=members,
        )

    def _outcome(self, trial: TrialRecord, index: int, rung: Rung, *, is_last: bool) -> str:
        if trial.rung > index:
            return PROMOTED
        if trial.state == TRAINING:
            return ON_ITS_WAY
        has_ended = self.config.is_promoting and trial.is_over and trial.results.get(rung.length) is None
        if has_ended or rung.length not in trial.results:
            return FELL
        if trial.state == WAITING:
            return UNDECIDED
        return REACHED if is_last else CUT

    def save_more(self) -> dict[str, Any]:
        return {
            "rungs": [
                [
                    [
                        each.length,
                        [[*rank] for rank in each.ranks],
                        each.numbers,
                        sorted(each.promoted),
                        each.num_training,
                        sorted([number, *then] for number, then in each.compared.items()),
                    ]
                    for each in row
                ]
                for row in self.rungs
            ]
        }

    def load_more(self, plain: Mapping[str, Any]) -> None:
        for trial in self.trials.values():
            self._num_counted[trial.bracket] += trial.state != REPLACED
        self.rungs = [
            [
                Rung(
                    length=length,
                    ranks=[(is_worst, value) for is_worst, value in ranks],
                    numbers=list(numbers),
                    promoted=set(promoted),
                    num_training=num_training,
                    compared={number: (place, among) for number, place, among in compared},
                )
                for length, ranks, numbers, promoted, num_training, compared in row
            ]
            for row in plain["rungs"]
        ]
