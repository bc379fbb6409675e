"""What a report means in a trial, for loops that are the script's own: the searcher's metric is a result; the search's
decision is the answer.

Rank 0 tells the search and asks it; all workers of an engine get the same answer, or leave together. Below a target the
answer comes at once. At a target the call waits, in short rounds, so that each worker hears when it is asked to leave.
A script without an engine gets SIGTERM as ever."""

from __future__ import annotations

import atexit
from collections.abc import Mapping
from typing import Any

from everstep.errors import UsageError
from everstep.record.numbers import split
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
from everstep.wire.bounds import MAX_INT
from everstep.wire.metrics import from_value
from everstep.wire.trials import TrialResult

_calls: SearchCalls | None = None


def decide(metrics: Mapping[str, Any], step: int) -> bool:
    """Whether to continue."""
    facts = current_trial()
    if facts is None or is_taken_over() or facts.metric not in metrics or (calls := _open()) is None:
        return True
    result, peers = _result(facts, metrics, step), current_peers()
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
        if wish == PARK:
            calls.pause()  # a script without an engine: SIGTERM is on its way


def _speak(
    result: TrialResult, calls: SearchCalls, number: int, peers: TrainingPeers | None, *, was_asked: bool
) -> tuple[int, str] | None:
    """For a few seconds at most. None: this worker is asked to leave, which all must hear first."""

    def is_news() -> bool:
        return peers is not None and peers.is_asked_to_leave and not was_asked

    if number < 0:
        kept = calls.report_result(result)
        return kept.number, kept.wish
    target = None if is_news() else calls.target(number, is_news)
    return None if target is None else (number, target.wish)


def _result(facts: TrialFacts, metrics: Mapping[str, Any], step: int) -> TrialResult:
    values, _ = split({name: metrics[name] for name in (facts.metric, facts.unit) if name in metrics})
    if facts.metric not in values:
        raise UsageError(
            f"report(): the searcher's metric {facts.metric!r} is {type(metrics[facts.metric]).__name__}, not a number",
            hint=f'report({{"{facts.metric}": 0.5}}, step=step)',
            code="searcher-metric-not-a-number",
        )
    length = from_value(values[facts.unit]) if facts.unit in values else step
    if not 0 <= length <= MAX_INT:
        raise UsageError(
            f"report(): {facts.unit} is {length}", hint="a length is a number from 0 up", code="report-length-invalid"
        )
    return TrialResult(length=int(length), metric=values[facts.metric], batches=step)


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
