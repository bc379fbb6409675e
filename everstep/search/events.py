"""Events and operations of a search: plain values, each with a JSON form.

Events come in, operations go out. Operations carry a reason that a person can read. Metrics that are not finite have
no JSON form: they are None, the worst value of all."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from everstep.errors import UsageError

ERRORED, USER_CANCELED, INVALID_HP = "ERRORED", "USER_CANCELED", "INVALID_HP"
WHYS = (ERRORED, USER_CANCELED, INVALID_HP)
COMPLETED, ERROR, CANCELED = "COMPLETED", "ERROR", "CANCELED"


@dataclass(frozen=True, kw_only=True, slots=True)
class Validated:
    """A trial was validated, at any length. In exact order, the first result at the target or past it counts."""

    kind: ClassVar[str] = "validated"
    trial: int
    length: int
    metric: float | None  # None: not finite


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialEnded:
    """A trial is over. `why`: None if it ended well, or because the search stopped it. `length`: the longest length
    that it was validated at, in case the end arrives before that result; None: no result is pending."""

    kind: ClassVar[str] = "ended"
    trial: int
    why: str | None = None
    length: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Advanced:
    """How much of its work a trial has done, from 0 to 1. Only the search's own progress depends on it."""

    kind: ClassVar[str] = "advanced"
    trial: int
    fraction: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Suggested:
    """The answer to Ask: hyperparameters for each trial of a cohort."""

    kind: ClassVar[str] = "suggested"
    cohort: int
    hparams: Mapping[str, Mapping[str, Any]]  # by the trial's number, as a text


@dataclass(frozen=True, kw_only=True, slots=True)
class Programmed:
    """What a search program wants, after all events up to the one with number `after_event`."""

    kind: ClassVar[str] = "programmed"
    after_event: int
    operations: Sequence[Mapping[str, Any]]  # as `everstep.searcher.operations` writes them


Event = Validated | TrialEnded | Advanced | Suggested | Programmed


@dataclass(frozen=True, kw_only=True, slots=True)
class CreateTrial:
    kind: ClassVar[str] = "create"
    trial: int
    hparams: Mapping[str, Any]
    seed: int
    bracket: int = 0
    reason: str = ""
    checkpoint: Mapping[str, Any] | None = (
        None  # the checkpoint to start from, unless it is the experiment's: uuid, uri, step
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainTo:
    """Train to a total length, validate, and wait. None: to the end of the script."""

    kind: ClassVar[str] = "train_to"
    trial: int
    length: int | None
    reason: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class StopTrial:
    kind: ClassVar[str] = "stop"
    trial: int
    reason: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ask:
    """Ask the model for the hyperparameters of a cohort. `results`: of all earlier ones, which had `cohort_size`."""

    kind: ClassVar[str] = "ask"
    cohort: int
    trials: tuple[int, ...]
    cohort_size: int
    results: tuple[tuple[int, float | None], ...]
    reason: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchOver:
    """The search is over; `state` is that of the experiment."""

    kind: ClassVar[str] = "done"
    state: str
    reason: str = ""


Operation = CreateTrial | TrainTo | StopTrial | Ask | SearchOver

_EVENTS: dict[str, type[Any]] = {each.kind: each for each in (Validated, TrialEnded, Advanced, Suggested, Programmed)}


def to_plain(value: Event | Operation) -> dict[str, Any]:
    return {"kind": value.kind, **asdict(value)}


def event_from_plain(plain: Mapping[str, Any]) -> Event:
    fields = {key: value for key, value in plain.items() if key != "kind"}
    kind = _EVENTS.get(str(plain.get("kind")))
    try:
        event: Event = kind(**fields) if kind else None  # type: ignore[assignment]
    except TypeError as error:
        raise UsageError(f"event {dict(plain)}: {error}", code="search-event") from None
    if kind is None:
        raise UsageError(f"event {dict(plain)}", hint=f"kind: {', '.join(_EVENTS)}", code="search-event")
    return event


def finite(metric: float | None) -> float | None:
    """NaN and infinity cannot be compared."""
    return float(metric) if metric is not None and abs(metric) <= sys.float_info.max else None
