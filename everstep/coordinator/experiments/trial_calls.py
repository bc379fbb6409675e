"""The calls of trials: how long to train, how good it is, and that it is over."""

from __future__ import annotations

import re
import time
from dataclasses import replace

from everstep import wire
from everstep.coordinator.experiments import trials
from everstep.coordinator.experiments.experiments import Experiments
from everstep.coordinator.experiments.facts import DONE, Trial
from everstep.coordinator.experiments.live import LiveExperiment
from everstep.coordinator.store.experiment_rows import read_trials
from everstep.errors import UNKNOWN, Refused
from everstep.search.events import Validated, finite

LONGEST_HOLD_S = 20.0
_JOB = re.compile(r"e([1-9]\d{0,15})-t([1-9]\d{0,15})")


def trial_key(job: str) -> tuple[int, int] | None:
    """Experiment and trial of a job; None: it has none."""
    match = _JOB.fullmatch(job)
    return (int(match[1]), int(match[2])) if match else None


class TrialCalls:
    def __init__(self, experiments: Experiments) -> None:
        self._experiments = experiments

    async def target(self, job: str, message: wire.TargetRequest) -> wire.TrialTarget:
        deadline = time.monotonic() + min(message.wait_s, LONGEST_HOLD_S)
        while True:
            live, trial = await self._find(job)
            answer = self._answer(live, trial, message.seen)
            left_s = deadline - time.monotonic()
            if answer.wish != wire.WAIT or left_s <= 0:
                return answer
            await self._experiments.bell.wait(left_s, job)

    async def result(self, job: str, message: wire.TrialResult) -> wire.TrialKept:
        live, trial = await self._find(job)
        if live is not None:
            async with live.lock:
                trial = live.trials[trial.number]
                is_known = message.length in live.results[trial.number]
                if not (is_known or trial.is_over) and live.facts.state in (wire.ACTIVE, wire.PAUSED):
                    await self._keep(live, trial, message)
            await self._experiments.settle(live)
            self._experiments.follow_up(live)
            trial = live.trials[trial.number]
        answer = self._answer(live, trial, trial.target_number - (not trial.is_waiting))
        return wire.TrialKept(number=answer.number, wish=answer.wish)

    async def _keep(self, live: LiveExperiment, trial: Trial, message: wire.TrialResult) -> None:
        event = Validated(trial=trial.number, length=message.length, metric=finite(float(message.metric)))
        changed = trials.validated(trial, message, smaller_is_better=live.config.smaller_is_better)
        step = message.batches or (message.length if live.config.unit == "batches" else 0)
        saved = [
            replace(each, metric=message.metric)
            for each in live.checkpoints[trial.number]
            if each.step == step and each.metric is None
        ]
        for each in saved:
            changed = live.with_checkpoint(changed, each)
        more = {"batches": message.batches, "digest": message.digest, "checkpoints": saved}
        await self._experiments.fold(live, event, [changed], **more)
        live.note_result(trial.number, message)

    async def end(self, job: str, message: wire.TrialEnd) -> None:
        live, trial = await self._find(job)
        if live is None:
            return
        async with live.lock:
            trial = live.trials[trial.number]
            if not trial.is_over and not trial.ending:
                reason = message.reason or trials.END_REASONS[message.why or None]
                is_stopped = trial.wish == wire.STOP and not message.why
                ending = replace(trial, ending=message.why or DONE, reason=trial.reason if is_stopped else reason)
                await self._experiments.commit(live, changed=[ending])
        await self._experiments.settle(live)
        self._experiments.follow_up(live)

    def _answer(self, live: LiveExperiment | None, trial: Trial, seen: int) -> wire.TrialTarget:
        if live is None:
            return trials.decide_target(trial, state=wire.STOPPING_COMPLETED, seen=seen, is_parking=False, unit="")
        return trials.decide_target(
            trial,
            state=live.facts.state,
            seen=seen,
            is_parking=trial.number in live.parking,
            unit=live.config.unit,
        )

    async def _find(self, job: str) -> tuple[LiveExperiment | None, Trial]:
        key = trial_key(job)
        if key is None:
            raise Refused(f"job {job} does not belong to an experiment", code="not-a-trial")
        live = await self._experiments.find(key[0])
        if live is not None and key[1] in live.trials:
            return live, live.trials[key[1]]
        for trial in await self._experiments.reader.read(lambda connection: read_trials(connection, key[0])):
            if trial.number == key[1]:
                return None, trial
        raise Refused(f"experiment {key[0]} has no trial {key[1]}", status=UNKNOWN, code="trial-unknown")
