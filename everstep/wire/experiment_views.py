"""Messages that show an experiment whole: its trials and results as columns, its rungs, its code, its use of slots.

In columns, the n-th value of each list belongs to the n-th trial, so that 10,000 trials are one short answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from everstep.wire.metrics import Value

METRIC_COLUMN, HYPERPARAMETER_COLUMN = "metric:", "hp:"  # how the names of an experiment's extra columns begin


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchedHyperparameter:
    name: str  # nested names are joined with dots
    kind: str  # int, double, log, choice
    least: float | None = None  # of numbers
    most: float | None = None
    values: list[Any] = field(default_factory=list)  # of a choice


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialColumns:
    """`TrialView` explains the values."""

    experiment: int
    last_event: int  # of the search, up to which these columns count
    metric: str
    smaller_is_better: bool
    unit: str
    searched: list[SearchedHyperparameter]
    trials: list[int]  # numbers
    ids: list[int]
    states: list[str]
    reasons: list[str]
    brackets: list[int]
    targets: list[int | None]
    lengths: list[int]
    latest: list[Value | None]
    best: list[Value | None]
    best_lengths: list[int]
    slots: list[int]
    restarts: list[int]
    batches: list[int]
    created_at: list[float]
    started_at: list[float | None]
    ended_at: list[float | None]
    hparams: dict[str, list[Any]]  # by name, those that are searched; None: the trial has no such hyperparameter


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialCurves:
    """The searcher's metric by length: a list for each trial."""

    experiment: int
    last_event: int
    trials: list[int]
    lengths: list[list[int]]
    metrics: list[list[Value | None]]  # None: not finite
    times: list[list[float]]  # of day
    num_results: list[int]  # that the trial has, more than the list if it was thinned
    num_left_out: int = 0  # trials with results that are not here at all
    thinned: str = ""  # a sentence about what is not here; "": everything is


@dataclass(frozen=True, kw_only=True, slots=True)
class RungView:
    """The trials that were compared at a length, the best first; those without a result come last, by number."""

    length: int
    quota: int  # how many of them continue; 0 at the full length
    is_decided: bool
    trials: list[int]
    metrics: list[float | None]  # by which they were compared; None: none, or not finite
    outcomes: list[str]  # as `everstep.search.explained_rungs` names them
    places: list[int]  # when its result was compared, from 1; 0: it was not
    compared: list[int]  # with how many, including itself


@dataclass(frozen=True, kw_only=True, slots=True)
class CohortView:
    bracket: int
    cohort: int  # in its bracket, from 0
    num_trials: int
    rungs: list[RungView]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rungs:
    experiment: int
    last_event: int
    order: str  # exact: compared with the whole cohort; arrival: with those that came before
    metric: str
    smaller_is_better: bool
    unit: str
    divisor: float
    cohorts: list[CohortView]  # none: this search compares no trials at rungs


@dataclass(frozen=True, kw_only=True, slots=True)
class ExperimentUse:
    """The slots that an experiment's trials have held, from its beginning to now."""

    times: list[float]  # of day
    slots: list[int]  # held from that time on
    slot_seconds: list[float]  # used up to that time


@dataclass(frozen=True, kw_only=True, slots=True)
class CodeFile:
    name: str
    num_bytes: int
    kind: str = "file"  # or link


@dataclass(frozen=True, kw_only=True, slots=True)
class CodeFileList:
    code: str  # SHA-256 of the tarball; "": the experiment has no code
    files: list[CodeFile]
    num_left_out: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class CodeText:
    name: str
    num_bytes: int
    text: str
    is_cut: bool = False  # the text is only the beginning


@dataclass(frozen=True, kw_only=True, slots=True)
class ExperimentColumns:
    """What the list of experiments can show and choose by."""

    metrics: list[str]
    hyperparameters: list[str]
    labels: list[str]
    owners: list[str]
