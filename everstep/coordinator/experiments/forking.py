"""Fork an experiment at the coordinator, for people who have its file in a browser: read the changed file, create.

The values of secrets stay where they are: the new experiment gets those of the old one if the caller may change that
one."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace

from everstep import wire
from everstep.coordinator.experiments.experiment_calls import ExperimentCalls
from everstep.errors import CONFLICT, Refused, UsageError
from everstep.wire.tokens import Token


async def fork(calls: ExperimentCalls, number: int, message: wire.ExperimentFork, caller: Token) -> wire.ExperimentView:
    old = await calls.config(number)
    spec = await asyncio.to_thread(forked_spec, old, number, message)
    if message.is_continued:
        spec = replace(spec, source_trial_id=await _best_trial(calls, number), source_checkpoint_uuid="")
    return await calls.create(spec, caller)


def forked_spec(old: wire.ExperimentConfig, number: int, message: wire.ExperimentFork) -> wire.ExperimentSpec:
    """Refused with the reader's words if the file is bad."""
    from everstep.job_file.forked import as_fork, reread, with_code_of  # a coordinator starts sooner without it

    spec = old.spec
    if message.written and message.written != old.written:
        try:
            spec = with_code_of(reread(message.written, number).spec, spec)
        except UsageError as error:
            hint = f"; {error.hint}" if error.hint else ""
            raise Refused(f"{_named(error.message, number)}{hint}", status=422, code=error.code) from None
    return as_fork(spec, number, message.request, is_paused=message.is_paused)


def _named(text: str, number: int) -> str:
    """Without the folder that the file was read from."""
    return re.sub(rf"\S*experiment-{number}\.yaml", "the file", text)


async def _best_trial(calls: ExperimentCalls, number: int) -> int:
    view = await calls.view(number)
    if view.state not in wire.ENDED:
        text = f"experiment {number} is {view.state}, not over; activate it instead"
        raise Refused(text, status=CONFLICT, code="experiment-not-over")
    return (await calls.trial(number, view.best.trial if view.best is not None else 1)).trial_id
