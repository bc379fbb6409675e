"""The trial that this worker trains, if any, and its calls to the experiment.

A trial trains to a target, validates, reports the result, and asks what to do next. Every call may be repeated: a
result of the same length changes nothing, and a question about the same target gets the same answer. So a worker that
takes over from a lost one repeats its calls. While the coordinator is away, calls are repeated until its deadline."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from everstep import env
from everstep.client.calls import Coordinator
from everstep.errors import EverstepError, UsageError
from everstep.retry import patiently
from everstep.wire.experiments import trial_job
from everstep.wire.trials import (
    INVALID_HP,
    PARK,
    STOP,
    TRAIN,
    WAIT,
    TargetRequest,
    TrialEnd,
    TrialKept,
    TrialResult,
    TrialTarget,
)

T = TypeVar("T")

HELD_S = 5.0  # a question is held this long at most
PAUSE_S = 0.05
_LOOK_S = 0.01  # how often to check whether to stop waiting: a slot that others want waits for it
_END_S = 30.0  # of patience, for a script that is ending

__all__ = ["PARK", "STOP", "TRAIN", "WAIT", "SearchCalls", "TrialFacts", "current_trial", "open_calls"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialFacts:
    """From EVERSTEP_TRIAL."""

    experiment: int
    trial: int  # its number in the experiment
    trial_id: int
    seed: int = 0
    metric: str = ""  # the searcher's
    unit: str = "batches"  # of lengths: batches, epochs, records, or a metric that counts time
    smaller_is_better: bool = True
    warm_start: str = ""  # uuid of the checkpoint whose weights the trial begins with …
    warm_start_uri: str = ""  # … and its place, …
    warm_start_step: int = 0  # … where it is known
    resume_from: str = ""  # uuid of a checkpoint of the same training by another trial …
    resume_from_uri: str = ""  # … and its place
    resume_from_step: int = 0
    key: str = ""  # that no other trial has, of this coordinator or another: names its folders


def current_trial() -> TrialFacts | None:
    """None: this process trains no trial, or has no coordinator."""
    text = env.value(env.TRIAL)
    if text is None or env.coordinator_url() is None:
        return None
    try:
        told = json.loads(text)
        known = {each.name for each in fields(TrialFacts)}
        return TrialFacts(**{name: value for name, value in told.items() if name in known})
    except (ValueError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{env.TRIAL}={text[:100]!r}: {error}",
            hint="only the node that runs a trial sets it; unset it elsewhere",
            code="trial-variable-unreadable",
        ) from None


def trial_key(facts: TrialFacts) -> str:
    """The trial's, or one made of its job and the coordinator's token, which another coordinator does not have."""
    token = hashlib.sha256((env.token() or "").encode()).hexdigest()[:8]
    return facts.key or f"{trial_job(facts.experiment, facts.trial)}-{token}"


def trial_folder(facts: TrialFacts) -> Path:
    """For its files on this machine, whatever folder its script is started in. It may not exist yet."""
    return env.home() / "trials" / trial_key(facts)


class SearchCalls:
    """Owns its connection. Only one worker of the trial speaks at a time."""

    def __init__(self, coordinator: Coordinator, deadline_s: float) -> None:
        self._coordinator, self._deadline_s = coordinator, deadline_s
        self._is_closed = threading.Event()

    def close(self) -> None:
        self._is_closed.set()
        self._coordinator.close()

    def pause(self) -> None:
        """A moment, before the next question."""
        self._is_closed.wait(PAUSE_S)

    def report_result(self, result: TrialResult) -> TrialKept:
        """Returns when it is durable."""
        return self._ask(partial(self._coordinator.report_result, result))

    def target(self, seen: int, is_wanted_elsewhere: Callable[[], bool] = lambda: False) -> TrialTarget | None:
        """The target after the one with number `seen`, or WAIT, after a few seconds at most. None: broken off,
        because this worker is wanted elsewhere."""
        answer: Future[TrialTarget] = Future()
        is_answered = threading.Event()  # looking at a future takes twice as long, and we look often
        ask = partial(self._coordinator.target, TargetRequest(seen=seen, wait_s=HELD_S))

        def run() -> None:
            try:
                answer.set_result(self._ask(ask))
            except BaseException as error:  # raised again where the answer is taken
                answer.set_exception(error)
            is_answered.set()

        threading.Thread(target=run, name="everstep-target", daemon=True).start()
        while not is_answered.wait(_LOOK_S):
            if is_wanted_elsewhere():
                return None
        return answer.result()

    def end(self, why: str, reason: str) -> None:
        """Report that the script ends its trial. Does not try for long: the exit code also tells."""
        message = TrialEnd(why=why, reason=reason)
        patiently(partial(self._coordinator.end_trial, message), min(self._deadline_s, _END_S))

    def _ask(self, call: Callable[[], T]) -> T:
        return patiently(call, self._deadline_s, stop=self._is_closed)


def open_calls() -> SearchCalls | None:
    """To the experiment of this worker's trial; None: it has none."""
    if current_trial() is None:
        return None
    url, token = env.coordinator_url() or "", env.token()
    if token is None:
        raise UsageError(
            f"{env.TRIAL} is set, but there is no token",
            hint=f"set {env.TOKEN_FILE} to the coordinator's token file (mode 0600), or {env.TOKEN}",
            code="token-missing",
        )
    return SearchCalls(Coordinator(url, token, env.job()), env.coordinator_deadline_s())


def end_as_invalid(reason: str) -> bool:
    """The hyperparameters are invalid: the search replaces the trial. False: not in a trial, or the call failed."""
    calls = open_calls()
    if calls is None:
        return False
    try:
        calls.end(INVALID_HP, reason[:1000])
        return True
    except EverstepError:
        return False
    finally:
        calls.close()


_is_taken = False


def take_over() -> None:
    """From now on our loop reports everything that the search needs; the script's own reports are only for people."""
    global _is_taken
    _is_taken = True


def is_taken_over() -> bool:
    return _is_taken


def plain(target: TrialTarget) -> list[Any]:
    """As JSON, for the other workers."""
    return [target.number, target.wish, target.length, target.reason]
