"""What `report` does in a trial with a loop of its own: it reports the searcher's metric as a result, and returns the
search's decision.

Rank 0 reports to the search and asks it; all workers of an engine get the same answer, or leave together. Below a
target the answer comes at once. At a target the call waits, in short rounds, so that each worker notices when it is
asked to leave; the others then wait on without it. A script without an engine gets SIGTERM as usual."""

from __future__ import annotations

import atexit
import logging
from collections.abc import Mapping
from typing import Any

from everstep.record.standing import TrainingPeers, current, current_peers
from everstep.record.trial import (
    PARK,
    STOP,
    TRAIN,
    WAIT,
    SearchCalls,
    TrialFacts,
    current_trial,
    is_taken_over,
    open_calls,
)
from everstep.record.trial_result import read_result
from everstep.wire.trials import TrialResult

log = logging.getLogger("everstep")

_calls: SearchCalls | None = None
_others: tuple[str, ...] = ()  # metrics of the first report, until one has the searcher's


def decide(metrics: Mapping[str, Any], step: int) -> bool:
    """Whether to continue."""
    facts = current_trial()
    if facts is None or is_taken_over():
        return True
    if facts.metric not in metrics:
        _note_others(facts.metric, metrics)
        return True
    result = _result(facts, metrics, step)
    if (calls := _open()) is None:
        return True
    peers = current_peers()
    if peers is None and not current().is_reporter:
        return True
    number, was_asked = -1, False  # of the target, once the search has the result
    while True:
        said = _speak(result, calls, number, peers, was_asked=was_asked) if current().is_reporter else None
        was_asked = peers is not None and peers.is_asked_to_leave
        mine: list[Any] = [was_asked, said]
        answers = peers.gather(mine) if peers is not None and peers.is_several else [mine]
        if answers is None:
            return True  # the others have continued meanwhile
        number, wish = next((each for _, each in answers if each is not None), (number, WAIT))
        if wish in (STOP, TRAIN):
            return bool(wish == TRAIN)
        must_leave = wish == PARK or all(is_asked for is_asked, _ in answers)
        if peers is not None and must_leave and number >= 0:
            peers.leave()
            return True  # it leaves after the step
        if peers is not None and number >= 0 and any(is_asked for is_asked, _ in answers):
            peers.part(is_leaver=was_asked)
        if wish == PARK:
            calls.pause()  # a script without an engine: SIGTERM is on its way


def _speak(
    result: TrialResult, calls: SearchCalls, number: int, peers: TrainingPeers | None, *, was_asked: bool
) -> tuple[int, str] | None:
    """Waits a few seconds at most. None: this worker was asked to leave, and all workers must know first."""

    def is_news() -> bool:
        return peers is not None and peers.is_asked_to_leave and not was_asked

    if number < 0:
        kept = calls.report_result(result)
        return kept.number, kept.wish
    target = None if is_news() else calls.target(number, is_news)
    return None if target is None else (number, target.wish)


def _result(facts: TrialFacts, metrics: Mapping[str, Any], step: int) -> TrialResult:
    counted = step if facts.unit == "batches" and facts.unit not in metrics else None
    length, metric = read_result(metrics, metric=facts.metric, unit=facts.unit, counted=counted)
    return TrialResult(length=length, metric=metric, batches=step)


def _note_others(metric: str, metrics: Mapping[str, Any]) -> None:
    """A name with a typo is noticed at the end: many scripts report the searcher's metric now and then only."""
    global _others
    if metrics and not _others and _calls is None:
        _others = tuple(metrics)
        atexit.register(_warn_of_others, metric)


def _warn_of_others(metric: str) -> None:
    if _calls is None:
        told = "report() never got the searcher's metric %s, only %s: correct searcher.metric, or the name in report()"
        log.warning(told, metric, ", ".join(_others))


def _open() -> SearchCalls | None:
    global _calls
    if _calls is None:
        _calls = open_calls()
        if _calls is not None:
            atexit.register(close)
    return _calls


def close() -> None:
    global _calls
    calls, _calls = _calls, None
    if calls is not None:
        atexit.unregister(close)
        calls.close()
