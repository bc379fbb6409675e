"""The jobs of trials: made when a trial gets its first slot, opened again for its next try, stopped with it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

from everstep import wire
from everstep.coordinator.experiments.facts import Experiment, Trial
from everstep.coordinator.job import CoordinatedJob
from everstep.errors import Refused

_NEVER = 1_000_000  # the experiment counts the restarts of its trials, not their jobs


def trial_policy(spec: wire.ExperimentSpec) -> dict[str, Any]:
    policy = wire.Policy(
        min_workers=1,
        max_workers=spec.max_slots,
        max_restarts=0,
        micro_batch_deaths=_NEVER,
        last_call_s=0.0,  # its node is here: no other is waited for
    )
    return asdict(policy)


class TrialJobs:
    def __init__(
        self,
        create: Callable[[str, wire.JobSpec], Awaitable[CoordinatedJob]],
        find: Callable[[str], Awaitable[CoordinatedJob]],
    ) -> None:
        self._create, self._find = create, find

    async def open(self, experiment: Experiment, trial: Trial) -> None:
        spec = experiment.spec
        config = {**spec.config, "hyperparameters": dict(trial.hparams)}
        name = f"{spec.name or f'experiment {experiment.number}'}, trial {trial.number}"
        policy = wire.Policy(**trial_policy(spec))
        job = await self._create(
            trial.job, wire.JobSpec(name=name[:256], policy=policy, config=wire.fitting_config(config))
        )
        await job.reopen("the trial has another slot")

    async def is_finished(self, trial: Trial) -> bool:
        if trial.started_at is None:
            return False
        try:
            return (await self._find(trial.job)).kept.is_finished
        except Refused:  # removed after its days
            return False

    async def bury(self, trial: Trial, assignment: int, reason: str) -> None:
        """What ran as this assignment is dead for certain: others need not wait until its workers have fenced
        themselves off."""
        if trial.started_at is None:
            return
        try:
            job = await self._find(trial.job)
        except Refused:  # removed after its days
            return
        agents = {each.agent for each in job.roster.workers.values()} | set(job.roster.nodes)
        for agent in sorted(agents):
            if agent.rpartition("-")[2] == str(assignment):
                await job.node_gone(agent, reason)

    async def stop(self, trial: Trial, reason: str) -> None:
        if trial.started_at is None:
            return
        try:
            job = await self._find(trial.job)
        except Refused:
            return
        await job.stop(reason)
