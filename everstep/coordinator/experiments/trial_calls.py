"""The calls of trials: ask how long to train, report a result, report the end."""

from __future__ import annotations

import re
import time
from dataclasses import replace

from everstep import wire
from everstep.coordinator.experiments import trials
from everstep.coordinator.experiments.experiments import Experiments
from everstep.coordinator.experiments.facts import DONE, Trial
from everstep.coordinator.experiments.live import LiveExperiment
from everstep.coordinator.experiments.results import keep_result
from everstep.coordinator.store.experiment_rows import read_trial
from everstep.coordinator.webhooks.alerts import Alerts
from everstep.errors import UNKNOWN, Refused

LONGEST_HOLD_S = 20.0
SHRINKING_S = 0.2  # between two questions of a trial that waits, its workers hear which of them are to leave
_JOB = re.compile(r"e([1-9]\d{0,15})-t([1-9]\d{0,15})")


def trial_key(job: str) -> tuple[int, int] | None:
    """Experiment and trial of a job; None: it does not belong to one."""
    match = _JOB.fullmatch(job)
    return (int(match[1]), int(match[2])) if match else None


class TrialCalls:
    def __init__(self, experiments: Experiments, alerts: Alerts) -> None:
        self._experiments, self._alerts = experiments, alerts

    async def target(self, job: str, message: wire.TargetRequest) -> wire.TrialTarget:
        asked_at, hold_s = time.monotonic(), min(message.wait_s, LONGEST_HOLD_S)
        while True:
            live, trial = await self._find(job)
            answer = self._answer(live, trial, message.seen)
            if self._experiments.holder.is_shrinking(trial.experiment, trial.number):
                hold_s = min(hold_s, SHRINKING_S)
            left_s = asked_at + hold_s - time.monotonic()
            if answer.wish != wire.WAIT or left_s <= 0:
                return answer
            await self._experiments.bell.wait(left_s, job)

    async def result(self, job: str, message: wire.TrialResult) -> wire.TrialKept:
        live, trial = await self._find(job)
        if live is not None:
            async with self._experiments.changing(live):
                trial = live.trials[trial.number]
                is_known = message.length in live.results[trial.number]
                if not (is_known or trial.is_over) and live.facts.state in (wire.ACTIVE, wire.PAUSED):
                    await keep_result(self._experiments, live, trial, message)
            trial = live.trials[trial.number]
        answer = self._answer(live, trial, trial.target_number - (not trial.is_waiting))
        return wire.TrialKept(number=answer.number, wish=answer.wish)

    async def alert(self, job: str, message: wire.Alert) -> wire.AlertKept:
        live, trial = await self._find(job)
        facts = live.facts if live is not None else await self._experiments.facts(trial.experiment)
        return wire.AlertKept(num_webhooks=await self._alerts.tell(facts, trial, message))

    async def end(self, job: str, message: wire.TrialEnd) -> None:
        live, trial = await self._find(job)
        if live is None:
            return
        async with self._experiments.changing(live):
            trial = live.trials[trial.number]
            if not trial.is_over and not trial.ending:
                reason = message.reason or trials.END_REASONS[message.why or None]
                is_stopped = trial.wish == wire.STOP and not message.why
                ending = replace(trial, ending=message.why or DONE, reason=trial.reason if is_stopped else reason)
                await self._experiments.commit(live, changed=[ending])

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
        trial = await self._experiments.reader.read(lambda connection: read_trial(connection, *key))
        if trial is None:
            raise Refused(f"experiment {key[0]} has no trial {key[1]}", status=UNKNOWN, code="trial-unknown")
        return None, trial
