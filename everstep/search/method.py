"""What all searchers share: the table of trials, the operations of an event, and the end of the search.

State is plain: `save` returns what JSON can hold, `load` takes it back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from everstep.errors import UsageError
from everstep.search.config import SearchConfig
from everstep.search.draws import trial_seed
from everstep.search.events import (
    CANCELED,
    COMPLETED,
    ERROR,
    ERRORED,
    INVALID_HP,
    USER_CANCELED,
    Ask,
    CreateTrial,
    Operation,
    Programmed,
    SearchOver,
    StopTrial,
    Suggested,
    TrainTo,
    TrialEnded,
    Validated,
)
from everstep.search.explained_rungs import ExplainedCohort
from everstep.search.space import Space

TRAINING, WAITING, STOPPED, FAILED, REPLACED = "training", "waiting", "stopped", "failed", "replaced"
_BY_LENGTH = ("results", "ahead")
MOST_REPLACEMENTS = 20  # of one trial by InvalidHP: then the space is wrong


@dataclass(kw_only=True, slots=True)
class TrialRecord:
    """A trial as its searcher knows it. `results`: metric by length; None is worse than any number."""

    number: int
    place: int
    bracket: int = 0
    state: str = TRAINING
    rung: int = 0
    target: int | None = None
    results: dict[int, float | None] = field(default_factory=dict)
    ahead: dict[int, float | None] = field(default_factory=dict)  # by length, also for rungs to come
    is_over: bool = False
    why: str | None = None
    last_length: int | None = None  # that it was validated at, if it said so at its end
    fraction: float = 0.0
    num_replaced: int = 0


class Method:
    """A searcher: `start` once, then one call for each event; operations are collected in `out`."""

    counts_past = False  # whether results past the target, as far as they are kept, may be the best

    def __init__(self, config: SearchConfig, space: Space, seed: int) -> None:
        self.config, self.space, self.seed = config, space, seed
        self.trials: dict[int, TrialRecord] = {}
        self.num_over = 0
        self.out: list[Operation] = []
        self.done: SearchOver | None = None

    # --- what each searcher does

    def start(self) -> None:
        raise NotImplementedError

    def validated(self, trial: TrialRecord, event: Validated) -> None:
        raise NotImplementedError

    def ended(self, trial: TrialRecord, event: TrialEnded) -> None:
        raise NotImplementedError

    def suggested(self, event: Suggested) -> None:
        """Samples from the model. Only model-based searchers ask for them."""

    def pending_ask(self) -> Ask | None:
        """The question that still needs an answer."""
        return None

    def programmed(self, event: Programmed) -> None:
        raise UsageError(
            f"searcher {self.config.name} takes no operations from a program",
            hint="use searcher.name: custom",
            code="search-not-custom",
        )

    def after_event(self) -> int:
        return 0

    def has_more(self) -> bool:
        """Whether trials are still to be created."""
        raise NotImplementedError

    def progress(self) -> float:
        raise NotImplementedError

    def save_more(self) -> dict[str, Any]:
        return {}

    def load_more(self, plain: Mapping[str, Any]) -> None: ...

    def explain(self) -> list[ExplainedCohort]:
        """Who was compared at each rung. None: this search compares no trials on their way."""
        return []

    # --- what they share

    def create(self, number: int, *, place: int, length: int | None, reason: str, bracket: int = 0) -> TrialRecord:
        trial = TrialRecord(number=number, place=place, bracket=bracket, target=length)
        self.trials[number] = trial
        self.out.append(
            CreateTrial(
                trial=number,
                hparams=self.hparams(number),
                seed=trial_seed(self.seed, number),
                bracket=bracket,
                reason=reason,
                checkpoint=self.checkpoint_of(number),
            )
        )
        self.out.append(TrainTo(trial=number, length=length, reason=reason))
        return trial

    def hparams(self, number: int) -> Mapping[str, Any]:
        return self.space.sample(self.seed, number)

    def checkpoint_of(self, number: int) -> Mapping[str, Any] | None:
        """The checkpoint that this trial starts from; None: the experiment's, if there is one."""
        return None

    def closed_by(self, operations: Sequence[Mapping[str, Any]]) -> set[int]:
        """The trials that these operations of a search program close, without asking for a further length."""
        return set()

    def stop(self, trial: TrialRecord, reason: str) -> None:
        trial.state = STOPPED
        trial.ahead.clear()  # how much of it came before the decision depends on timing
        if not trial.is_over:
            self.out.append(StopTrial(trial=trial.number, reason=reason))

    def rank(self, metric: float | None, number: int) -> tuple[bool, float, int]:
        """The smallest is the best."""
        return (metric is None, (metric or 0.0) * (1 if self.config.smaller_is_better else -1), number)

    def best(self) -> tuple[int, float, int] | None:
        """Trial, metric and length of the best result so far."""
        found = [
            (self.rank(metric, trial.number), trial.number, metric, length)
            for trial in self.trials.values()
            for length, metric in trial.results.items()
            if metric is not None
            and trial.state != REPLACED
            and (self.counts_past or trial.target is None or length <= trial.target)
        ]
        return min(found)[1:] if found else None

    def finish_if_over(self) -> None:
        if self.done is None and not self.has_more() and self.num_over == len(self.trials):
            self.done = self._verdict()
            self.out.append(self.done)

    def _verdict(self) -> SearchOver:
        counted = [trial for trial in self.trials.values() if trial.state != REPLACED]
        whys = [trial.why for trial in counted]
        is_one = len(counted) == 1
        text = "1 trial is over" if is_one else f"{len(counted)} trials are over"
        canceled = "was canceled" if is_one else "were canceled"
        for why, state, what in (
            (ERRORED, ERROR, "failed"),
            (INVALID_HP, ERROR, "had invalid hyperparameters"),
            (USER_CANCELED, CANCELED, canceled),
        ):
            if whys and all(each == why for each in whys):
                which = "the only trial" if is_one else f"all {len(counted)} trials"
                return SearchOver(state=state, reason=f"{which} {what}")
        bad = [(ERRORED, "failed"), (USER_CANCELED, "canceled"), (INVALID_HP, "with invalid hyperparameters")]
        notes = [f"{whys.count(why)} {what}" for why, what in bad if why in whys]
        return SearchOver(state=COMPLETED, reason="; ".join([text, *notes]))

    def save(self) -> dict[str, Any]:
        """The same for the same facts, in whatever order they came."""
        trials = [
            asdict(trial) | {name: sorted(map(list, getattr(trial, name).items())) for name in _BY_LENGTH}
            for _, trial in sorted(self.trials.items())
        ]
        done = None if self.done is None else asdict(self.done)
        return {"trials": trials, "done": done, **self.save_more()}

    def load(self, plain: Mapping[str, Any]) -> None:
        for each in plain["trials"]:
            record = TrialRecord(**each | {name: dict(each[name]) for name in _BY_LENGTH})
            self.trials[record.number] = record
        self.num_over = sum(trial.is_over for trial in self.trials.values())
        self.done = None if plain["done"] is None else SearchOver(**plain["done"])
        self.load_more(plain)


def who_continues(quota: int) -> str:
    if not quota:
        return "none of this cohort continues"
    return "only the best one continues" if quota == 1 else f"the best {quota} continue"


def first_past(results: Mapping[int, float | None], target: int | None) -> dict[int, float | None]:
    """The result that counts for a target: the first by length that is there or past it. How many more a script
    reports before it ends depends on timing."""
    first = None
    for length in results:
        if target is not None and length >= target and (first is None or length < first):
            first = length
    return {} if first is None else {first: results[first]}


def firsts_past(results: Mapping[int, float | None], targets: Sequence[int]) -> dict[int, float | None]:
    """The results that count for any of these targets, which are in ascending order."""
    found: dict[int, float | None] = {}
    for target in targets:
        if not (first := first_past(results, target)):
            break
        found |= first
    return found


def shown(metric: float | None) -> str:
    return "no finite metric (the worst value)" if metric is None else f"{metric:g}"


def ordinal(place: int) -> str:
    if place % 100 in (11, 12, 13):
        return f"{place}th"
    return f"{place}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(place % 10, 'th') }"
