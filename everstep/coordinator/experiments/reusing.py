"""Trials that take over earlier results instead of training on a slot.

Before a trial of an experiment with `reuse` is offered to the pool, each new target is looked up: known results are
folded as events, as if the trial had reported them. Once the trial has started, it is no longer looked up. If two
trials of an experiment are equal, the second one waits for the first."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from sqlalchemy import Connection

from everstep import wire
from everstep.coordinator.experiments.facts import Trial
from everstep.coordinator.experiments.live import LiveExperiment, with_checkpoints
from everstep.coordinator.experiments.results import keep_result, results_of
from everstep.coordinator.experiments.reuse import Reuse, TrainedBefore, decide_reuse
from everstep.coordinator.store.experiment_rows import read_checkpoints, read_events, read_reusable
from everstep.errors import EverstepError

if TYPE_CHECKING:
    from everstep.coordinator.experiments.experiments import Experiments

log = logging.getLogger(__name__)

AGAIN_S = 0.5  # after a failure of the store


class TrialReuse:
    def __init__(self, experiments: Experiments) -> None:
        self._experiments = experiments
        self.kinds: Mapping[str, frozenset[str]] = {}  # of the machines of each pool

    def look(self, live: LiveExperiment) -> None:
        """Look for earlier results in the background, if a trial may reuse some."""
        if not live.is_reusing or live.is_looking or not self._kinds_for(live) or not self._idle(live):
            return
        live.is_looking = True
        self._experiments.spawn(self._look(live))

    def _idle(self, live: LiveExperiment) -> list[Trial]:
        """Trials to look up now. If several are equal, all but the first wait until that one reaches its target."""
        if live.is_stale or live.facts.state != wire.ACTIVE:
            return []
        kind = self._kind_for(live)
        at_work = {
            live.key_of(each, kind): each.number
            for each in sorted(live.trials.values(), key=lambda each: -each.number)
            if not (each.is_over or each.is_waiting or each.must_end)
        }
        idle = [each for each in live.trials.values() if live.may_reuse(each)]
        return [each for each in idle if at_work.get(live.key_of(each, kind), each.number) >= each.number]

    def _kinds_for(self, live: LiveExperiment) -> frozenset[str]:
        """Of the machines that its trials may train on now."""
        return self.kinds.get(live.facts.scheduling.pool, frozenset())

    def _kind_for(self, live: LiveExperiment) -> str:
        return next(iter(self._kinds_for(live)), "")

    async def _look(self, live: LiveExperiment) -> None:
        try:
            while self._kinds_for(live) and (idle := self._idle(live)):
                await self._look_up(live, idle)
        except EverstepError as error:  # the store was away: the experiment is read again, or asked again soon
            log.warning("experiment %d: %s", live.number, error)
            await asyncio.sleep(AGAIN_S)
        finally:
            live.is_looking = False
        self._experiments.follow_up(live)
        self._experiments.holder.note_change()

    async def _look_up(self, live: LiveExperiment, idle: Sequence[Trial]) -> None:
        if len(self._kinds_for(live)) > 1:  # it could train on any of them
            for each in idle:
                live.looked_up[each.number] = each.target_number
            return
        kind = self._kind_for(live)
        keys = {each.number: live.key_of(each, kind) for each in idle}
        sweeper = self._experiments.sweeper
        going, num_decisions = sweeper.going, sweeper.num_decisions
        before = await self._experiments.reader.read(
            lambda connection: read_before(connection, list(dict.fromkeys(keys.values())), going)
        )
        for each in idle:
            async with self._experiments.choosing, live.lock:
                if sweeper.num_decisions != num_decisions:
                    return  # what was read may be deleted meanwhile: look again
                trial = live.trials[each.number]
                if live.is_stale or live.facts.state != wire.ACTIVE or trial.target_number != each.target_number:
                    return
                if trial.started_at is None and not self._experiments.holder.holds(live.number, trial.number):
                    others = [one for one in before[keys[each.number]] if one.trial.job != trial.job]
                    await self._take_over(live, trial, decide_reuse(trial, others, live.config), kind)
                live.looked_up[trial.number] = trial.target_number  # last: after this, it may get a slot
            await self._experiments.settle(live)

    async def _take_over(self, live: LiveExperiment, trial: Trial, found: Reuse, kind: str) -> None:
        if not (found.results or found.checkpoint):
            return
        live.borrowed[trial.number] += found.borrowed
        noted = found.noted(replace(trial, kind=kind, reuse_key=live.key_of(trial, kind)))
        if borrowed := live.borrowed[trial.number]:
            noted = with_checkpoints(noted, borrowed, smaller_is_better=live.config.smaller_is_better)
        await self._experiments.commit(live, changed=[noted])
        log.info("experiment %d, trial %d: results of %s reused", live.number, trial.number, found.source)
        for result in found.results:
            trial = live.trials[trial.number]
            if result.length not in live.results[trial.number] and not (trial.is_over or trial.must_end):
                await keep_result(self._experiments, live, trial, result)
        trial = live.trials[trial.number]
        if found.is_over and not (trial.is_over or trial.must_end):
            await self._experiments.end_trial(live, trial, None, trial.reason)


def read_before(
    connection: Connection, keys: Sequence[str], going: Collection[str] = ()
) -> dict[str, list[TrainedBefore]]:
    """All trials with these keys, by key, without the checkpoints in `going`, which are being deleted."""
    found: dict[str, list[TrainedBefore]] = defaultdict(list)
    events = {}
    for trial in read_reusable(connection, keys):
        if trial.experiment not in events:
            events[trial.experiment] = read_events(connection, trial.experiment, 0)
        results, targets = results_of(events[trial.experiment], trial.number)
        saved = read_checkpoints(connection, trial.experiment, trial.number)
        saved = [each for each in saved if each.uuid not in going]
        before = TrainedBefore(trial=trial, results=results, targets=targets, checkpoints=saved)
        found[trial.reuse_key].append(before)
    return found
