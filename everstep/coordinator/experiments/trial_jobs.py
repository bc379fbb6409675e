"""The jobs of trials: created with a trial's first slot, reopened for its next try, stopped with the trial, removed
with a deleted experiment."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace

from everstep import wire
from everstep.coordinator.experiments.facts import Experiment, Trial
from everstep.coordinator.experiments.live import LiveExperiment
from everstep.coordinator.experiments.seam import Candidate, SlotHolder, TrialPace
from everstep.coordinator.job import CoordinatedJob
from everstep.errors import Refused

_NEVER = 1_000_000  # the experiment counts the restarts of its trials, not their jobs


def trial_policy(spec: wire.ExperimentSpec) -> wire.Policy:
    """What the experiment asks for, with what the pool decides."""
    return replace(
        spec.policy,
        min_workers=spec.min_slots,
        max_workers=spec.max_slots,
        min_nodes=spec.min_slots,
        max_nodes=spec.max_slots,  # one worker each; the number of micro-batches depends on it
        join_s=_NEVER,  # as long as it takes the pool to find another slot
        max_restarts=0,
        micro_batch_deaths=_NEVER,
        last_call_s=0.0,  # its node is here: no other is waited for
    )


class TrialJobs:
    def __init__(
        self,
        create: Callable[[str, wire.JobSpec], Awaitable[CoordinatedJob]],
        find: Callable[[str], Awaitable[CoordinatedJob]],
        at_hand: Callable[[str], CoordinatedJob | None],
        remove: Callable[[str], Awaitable[object]],
    ) -> None:
        self._create, self._find, self._at_hand, self.remove = create, find, at_hand, remove

    async def open(self, experiment: Experiment, trial: Trial, *, is_first: bool) -> bool:
        """False: the job is over, and processes of the trial still end."""
        spec = experiment.spec
        config = {**spec.config, "hyperparameters": dict(trial.hparams)}
        name = f"{spec.name or f'experiment {experiment.number}'}, trial {trial.number}"
        job = await self._create(
            trial.job, wire.JobSpec(name=name[:256], policy=trial_policy(spec), config=wire.fitting_config(config))
        )
        if job.roster.is_over and not is_first:
            return False
        await job.reopen("the trial continues on another slot")
        return True

    def progress(self, trial: Trial) -> TrialPace | None:
        """The pace of the trial's generation, if one is training now."""
        job = self._at_hand(trial.job)
        if job is None or job.kept.is_over or not job.kept.generation.is_open:
            return None
        roster, signs = job.kept, job.signs.all
        generation = roster.generation
        told = [signs[each] for each in generation.ranks if each in signs]
        if not told or any(roster.workers[each].settled < generation.number for each in generation.ranks):
            return None
        newest = max(told, key=lambda each: (each.step, each.told_at))
        return TrialPace(
            generation=generation.number,
            size=len(generation.members),
            step=newest.step,
            at=newest.told_at,
            formed_at=job.roster.formed_at,
            nodes=frozenset(roster.workers[each].agent for each in generation.ranks),
            is_waiting=trial.is_waiting,
        )

    def sized(self, live: LiveExperiment, each: Candidate, holder: SlotHolder) -> Candidate:
        """The trial with the number of slots that it can use now. It grows only if its workers use the engine: others
        would have to restart."""
        held = holder.holds(each.experiment, each.trial)
        trial, job = live.trials[each.trial], self._at_hand(each.job)
        if not held:
            return each
        if job is None or trial.must_end or job.roster.is_over:  # its processes are ending
            return replace(each, min_slots=held, max_slots=held)
        progress, spec = self.progress(trial), live.facts.spec
        left = each.batches_left if progress is None else live.batches_left(trial, progress.step)
        is_elastic = job.kept.generation.number > 0 and not spec.config.get("metric_line")
        return replace(each, max_slots=spec.max_slots if is_elastic else spec.min_slots, batches_left=left)

    async def read(self, trial: Trial) -> None:
        """Read the trial's job from the store, if it is not in memory."""
        with suppress(Refused):  # none was created, or it was removed after its days
            await self._find(trial.job)

    async def is_finished(self, trial: Trial) -> bool:
        if trial.started_at is None:
            return False
        try:
            return (await self._find(trial.job)).kept.is_finished
        except Refused:  # removed after its days
            return False

    async def bury(self, trial: Trial, assignment: int, reason: str) -> None:
        """All processes of this assignment are confirmed dead: no one needs to wait until its workers must have stopped
        by themselves."""
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
