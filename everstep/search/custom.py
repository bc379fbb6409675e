"""A search whose operations come from a program: `searcher: {name: custom, metric: loss, unit: batches}`.

The program reads events, and posts operations after them. A post is an event like any other, and is applied once. A
repeated or late post changes nothing. A post that cannot be applied raises before anything changes.

The program names its trials (`request_id`); they are numbered in the order of their creation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from everstep.search.config import MOST_TRIALS, SearchConfig
from everstep.search.events import (
    CANCELED,
    COMPLETED,
    ERROR,
    Programmed,
    SearchOver,
    TrainTo,
    TrialEnded,
    Validated,
    finite,
)
from everstep.search.method import STOPPED, TRAINING, WAITING, Method, TrialRecord
from everstep.search.plain import keep_best
from everstep.search.program_operations import CLOSE, CREATE, PROGRESS, SHUTDOWN, VALIDATE_AFTER, check_operations
from everstep.search.space import Space


@dataclass(kw_only=True, slots=True)
class LengthsAsked:
    """The lengths that a program wants a trial to be validated at, in order. The first result at
    a length or past it answers that length, even if it arrived before the program asked."""

    targets: list[int] = field(default_factory=list)
    past: int = 0  # the longest length that a result is known for …
    metric: float | None = None  # … and that result
    is_closing: bool = False  # after the last of them

    def ask(self, length: int) -> None:
        if not self.is_closing:
            self.targets.append(length)

    def report(self, length: int, metric: float | None) -> None:
        if length > self.past:
            self.past, self.metric = length, finite(metric)

    def take_answered(self) -> list[int]:
        answered = [each for each in self.targets if each <= self.past]
        self.targets = [each for each in self.targets if each > self.past]
        return answered


@dataclass(kw_only=True, slots=True)
class ProgramTrial:
    request_id: str
    hparams: Mapping[str, Any]
    checkpoint: Mapping[str, Any] | None = None
    asked: LengthsAsked = field(default_factory=LengthsAsked)


class Custom(Method):
    counts_past = True

    def __init__(self, config: SearchConfig, space: Space, seed: int) -> None:
        super().__init__(config, space, seed)
        self._after_event = 0
        self._wanted: list[ProgramTrial] = []  # trial n is at index n - 1
        self._numbers: dict[str, int] = {}  # by request_id
        self._progress = 0.0
        self._end_asked: SearchOver | None = None

    def start(self) -> None:
        """The program's first post starts the search."""

    def programmed(self, event: Programmed) -> None:
        if event.after_event <= self._after_event:
            return
        check_operations(event.operations, self._numbers, MOST_TRIALS)
        self._after_event = event.after_event
        for each in event.operations:
            if self._end_asked is None:
                self._carry_out(each)

    def _carry_out(self, operation: Mapping[str, Any]) -> None:
        kind = operation["kind"]
        if kind == PROGRESS:
            self._progress = float(operation["progress"])
        elif kind == SHUTDOWN:
            self._shut_down(operation)
        elif kind == CREATE:
            self._note_created(operation)
        else:
            number = self._numbers[operation["request_id"]]
            asked = self._wanted[number - 1].asked
            if kind == VALIDATE_AFTER:
                asked.ask(operation["length"])
            else:
                asked.is_closing = True
            self._advance(number)

    def _note_created(self, operation: Mapping[str, Any]) -> None:
        """The trial begins when it has a length to train to."""
        created = ProgramTrial(
            request_id=operation["request_id"],
            hparams=operation["hparams"],
            checkpoint=operation.get("checkpoint"),
        )
        self._wanted.append(created)
        self._numbers[created.request_id] = len(self._wanted)

    def _advance(self, number: int) -> None:
        """Emit the operations that follow from the trial's current lengths."""
        asked = self._wanted[number - 1].asked
        asked.take_answered()
        target = asked.targets[0] if asked.targets else None
        if number not in self.trials:
            if target is not None or asked.is_closing:
                self._begin(number, target)
            return
        trial = self.trials[number]
        if trial.is_over or trial.state == STOPPED:
            return
        if target is None and asked.is_closing:
            self.stop(trial, "the search program closed it")
        elif target is None:
            trial.state = WAITING
        elif trial.state == WAITING or trial.target != target:
            trial.state, trial.target = TRAINING, target
            reason = f"the search program wants a result at {target} {self.config.unit}"
            self.out.append(TrainTo(trial=number, length=target, reason=reason))

    def _begin(self, number: int, target: int | None) -> None:
        self.create(number, place=number, length=target, reason="created by the search program")
        if target is None:
            self.out.pop()  # its TrainTo
            self.stop(self.trials[number], "closed by the search program before it started")

    def hparams(self, number: int) -> Mapping[str, Any]:
        return self._wanted[number - 1].hparams

    def checkpoint_of(self, number: int) -> Mapping[str, Any] | None:
        return self._wanted[number - 1].checkpoint

    def closed_by(self, operations: Sequence[Mapping[str, Any]]) -> set[int]:
        asked = [(each.get("kind"), str(each.get("request_id"))) for each in operations]
        closed = {name for kind, name in asked if kind == CLOSE} - {name for kind, name in asked if kind != CLOSE}
        return {self._numbers[name] for name in closed if name in self._numbers}

    def _shut_down(self, operation: Mapping[str, Any]) -> None:
        state = ERROR if operation.get("failure") else CANCELED if operation.get("cancel") else COMPLETED
        how = {ERROR: "with failure=True", CANCELED: "with cancel=True", COMPLETED: "as complete"}[state]
        self._end_asked = SearchOver(state=state, reason=f"the search program ended the search {how}")

    def validated(self, trial: TrialRecord, event: Validated) -> None:
        keep_best(self, trial, event)
        self._wanted[trial.number - 1].asked.report(event.length, event.metric)
        self._advance(trial.number)

    def ended(self, trial: TrialRecord, event: TrialEnded) -> None:
        trial.state = STOPPED
        trial.fraction = 1.0

    def after_event(self) -> int:
        return self._after_event

    def has_more(self) -> bool:
        """Whether the program has not ended the search yet."""
        return self._end_asked is None

    def finish_if_over(self) -> None:
        """Finish as soon as the program asks for it: trials that still train end with the experiment."""
        if self.done is None and self._end_asked is not None:
            if self._end_asked.state == COMPLETED:  # else they are canceled
                for trial in [each for each in self.trials.values() if each.state != STOPPED]:
                    self.stop(trial, self._end_asked.reason)
            self.done = self._end_asked
            self.out.append(self.done)

    def progress(self) -> float:
        return 1.0 if self.done is not None else self._progress

    def save_more(self) -> dict[str, Any]:
        return {
            "wanted": [asdict(each) for each in self._wanted],
            "after_event": self._after_event,
            "progress": self._progress,
            "end_asked": None if self._end_asked is None else asdict(self._end_asked),
        }

    def load_more(self, plain: Mapping[str, Any]) -> None:
        self._wanted = [ProgramTrial(**{**each, "asked": LengthsAsked(**each["asked"])}) for each in plain["wanted"]]
        self._numbers = {each.request_id: number for number, each in enumerate(self._wanted, 1)}
        self._after_event = plain["after_event"]
        self._progress = plain["progress"]
        asked = plain["end_asked"]
        self._end_asked = None if asked is None else SearchOver(**asked)
