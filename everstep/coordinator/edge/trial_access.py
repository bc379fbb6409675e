"""What a trial's token opens: the trial's own job, code and checkpoints by names that cannot be guessed, and the
experiments that its script has created, to look at them and to run their searches. The rest is refused, and once the
trial is over, everything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everstep.coordinator.experiments.experiments import Experiments
from everstep.coordinator.experiments.trial_calls import trial_key
from everstep.errors import Refused
from everstep.wire.operations import Operation
from everstep.wire.tokens import Token

_FORBIDDEN = 403
# A digest and a UUID cannot be guessed.
_ALWAYS = ("check", "openapi", "code", "upload_code", "checkpoint", "create_experiment")


async def check_trial(
    token: Token, operation: Operation, job: str, values: Mapping[str, Any], experiments: Experiments
) -> None:
    """`job`, `values`: what the path names."""
    experiment, trial = _open_trial(token, experiments)
    if operation.name in _ALWAYS or (job and job == token.trial):
        return
    if operation.method == "GET" and (values.get("experiment"), values.get("trial")) == (experiment, trial):
        return
    other = trial_key(job)
    number = values.get("experiment", other[0] if other is not None and operation.method == "GET" else None)
    if number is None or await _creator(number, experiments) != token.trial:
        raise _elsewhere(token)


def check_not_of_trial(token: Token) -> None:
    if token.trial:
        raise _elsewhere(token)


async def _creator(number: int, experiments: Experiments) -> str:
    """Of an experiment; "" if there is none."""
    try:
        return (await experiments.facts(number)).created_by
    except Refused:
        return ""


def _open_trial(token: Token, experiments: Experiments) -> tuple[int, int]:
    key = trial_key(token.trial)
    live = None if key is None else experiments.live.get(key[0])
    trial = None if live is None or key is None else live.trials.get(key[1])
    if key is None or trial is None or trial.is_over:
        text = f"the token is for trial {token.trial} alone, which is over"
        raise Refused(text, status=_FORBIDDEN, code="trial-over")
    return key


def _elsewhere(token: Token) -> Refused:
    text = f"the token is for trial {token.trial} alone, and this is not part of it"
    return Refused(text, status=_FORBIDDEN, code="token-of-trial")
