"""All experiments of a coordinator. One event, one transaction: the event with its operations, and the trials that
they change.

A coordinator that is killed between any two lines continues from the store, since memory only repeats what is there:
events are folded again, and what follows from them is done again. Slots are released outside of an experiment's lock,
since the pool calls back."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import ChainMap
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from everstep import wire
from everstep.coordinator.clock import Now
from everstep.coordinator.experiments import trials
from everstep.coordinator.experiments.facts import LIVE, STOPPING, CheckpointRecord, Experiment, Trial
from everstep.coordinator.experiments.live import BEGAN, LiveExperiment, summary_of
from everstep.coordinator.experiments.results import remembered
from everstep.coordinator.experiments.reusing import TrialReuse
from everstep.coordinator.experiments.seam import KILL, AssignmentEnd, Candidate, NoSlots, SlotHolder
from everstep.coordinator.experiments.states import ended_if_over
from everstep.coordinator.experiments.suggesting import Suggester
from everstep.coordinator.experiments.sweeping import CheckpointSweeper
from everstep.coordinator.experiments.trial_jobs import TrialJobs, trial_policy
from everstep.coordinator.store.experiment_rows import (
    Changes,
    EventRow,
    read_beginning,
    read_checkpoints,
    read_experiment,
    read_lent,
    read_live,
    write_changes,
)
from everstep.coordinator.store.store import Store
from everstep.coordinator.store.store_reader import StoreReader
from everstep.coordinator.turns import Turns
from everstep.coordinator.vital_tasks import die_if_failed
from everstep.coordinator.waiters import Bell
from everstep.errors import UNKNOWN, EverstepError, Refused
from everstep.search.events import USER_CANCELED, Event, Operation, TrialEnded, to_plain
from everstep.storage.database import StoreError

log = logging.getLogger(__name__)

STORE_PAUSE_S = 0.5


class Experiments:
    """Implements `seam.TrialSource`."""

    def __init__(self, store: Store, reader: StoreReader, jobs: TrialJobs, turns: Turns, now: Now) -> None:
        self.reader, self.jobs, self.now = reader, jobs, now
        self.holder: SlotHolder = NoSlots()
        self.bell = Bell(turns)  # a group per trial's job, and `events-NUMBER` per experiment
        self._store = store
        self.live: dict[int, LiveExperiment] = {}
        self._last_number = self._last_trial_id = 0
        self.creating = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._reading_again: set[int] = set()
        self._suggester = Suggester()
        self._reuse = TrialReuse(self)
        self._sweeper = CheckpointSweeper(store, lambda: [each.facts for each in self.live.values()])

    async def start(self, holder: SlotHolder | None = None) -> None:
        """Continue what the store holds. The pool must know its slots by now."""
        self.holder = holder or self.holder
        begun = await self._store.in_thread(lambda: self._store.read(read_beginning))
        self._last_number, self._last_trial_id = begun.last_experiment, begun.last_trial_id
        for number in begun.live:
            await self._load(number)
        for number in begun.unswept:
            self.sweep(number)

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._suggester.close()

    def let_go(self) -> None:
        self.bell.close()

    # --- memory

    async def find(self, number: int) -> LiveExperiment | None:
        """None: it is over, or there is none."""
        live = self.live.get(number)
        if live is not None:
            live.check_fresh()
        return live

    async def facts(self, number: int) -> Experiment:
        if live := self.live.get(number):
            return live.facts
        found = await self.reader.read(lambda connection: read_experiment(connection, number))
        if found is None:
            raise Refused(
                f"there is no experiment {number}; the newest is {self._last_number}",
                status=UNKNOWN,
                code="experiment-unknown",
            )
        return found

    async def _load(self, number: int) -> None:
        loaded = await self._store.in_thread(lambda: self._store.read(lambda c: read_live(c, number)))
        saved = await self._store.in_thread(lambda: self._store.read(lambda c: read_checkpoints(c, number)))
        lent = await self._store.in_thread(lambda: self._store.read(lambda c: read_lent(c, number)))
        if loaded is None or loaded.experiment.is_over:
            self.live.pop(number, None)
            if loaded is not None and loaded.experiment.needs_sweep:
                self.sweep(number)
            return
        live = await asyncio.to_thread(remembered, loaded, saved, self.now())
        for each in lent:
            live.borrowed[each.trial].append(each)
        self.live[number] = live
        async with live.lock:
            await self._settle(live)
        self.follow_up(live)

    def _read_again(self, live: LiveExperiment) -> None:
        """What could not be written may have been: only the store knows. One task, so that none replaces what another
        has read and changed."""
        live.is_stale = True
        if live.number not in self._reading_again:
            self._reading_again.add(live.number)
            self.spawn(self._reload(live.number))

    async def _reload(self, number: int) -> None:
        while number in self._reading_again:
            await asyncio.sleep(STORE_PAUSE_S)
            try:
                await self._load(number)
            except StoreError as error:
                log.error("experiment %d: %s", number, error)
                continue
            if (live := self.live.get(number)) is None or not live.is_stale:
                self._reading_again.discard(number)
        self.bell.ring()
        self.holder.note_change()

    # --- changing: with the experiment's lock

    async def begin(self, facts: Experiment) -> LiveExperiment:
        """A new experiment, with the lock `creating`."""
        live = LiveExperiment(replace(facts, number=self._last_number + 1))
        operations = await asyncio.to_thread(live.apply, None)
        self._last_number = live.number  # also if it seems not to be kept: it may have been
        await self.commit(live, event=BEGAN, operations=operations, facts=live.facts)
        if live.facts.state in LIVE:
            self.live[live.number] = live
        self.follow_up(live)
        return live

    async def fold(self, live: LiveExperiment, event: Event, changed: Iterable[Trial] = (), **more: Any) -> None:
        """One event of the search."""
        live.check_fresh()
        operations = live.apply(event)
        await self.commit(live, event=to_plain(event), operations=operations, changed=changed, **more)

    async def commit(
        self,
        live: LiveExperiment,
        *,
        event: Mapping[str, Any] | None = None,
        operations: Sequence[Operation] = (),
        changed: Iterable[Trial] = (),
        facts: Experiment | None = None,
        checkpoints: Sequence[CheckpointRecord] = (),
        result: wire.TrialResult | None = None,
    ) -> None:
        live.check_fresh()  # again: others may have waited for the lock meanwhile
        now, own = time.time(), {each.number: each for each in changed}
        known = ChainMap(own, live.trials)
        told = trials.operated(known, operations, experiment=live.number, next_id=self._last_trial_id + 1, now=now)
        own.update(told)
        num_open = live.num_open + sum(
            (not each.is_over) - (each.number in live.trials and not live.trials[each.number].is_over)
            for each in own.values()
        )
        after = ended_if_over(facts or live.facts, operations, num_open, now)
        if after.is_over and not live.facts.is_over:
            live.last_event += event is not None
            after = replace(after, summary=summary_of(live, ChainMap(own, live.trials)))
            live.last_event -= event is not None
        self._last_trial_id = max([self._last_trial_id, *(each.trial_id for each in own.values())])
        changes = Changes(
            experiment=after if after is not live.facts or event is BEGAN else None,
            trials=list(own.values()),
            event=None if event is None else _row(live, event, operations, now, result),
            checkpoints=checkpoints,
        )
        try:
            await self._store.write(lambda connection: write_changes(connection, changes))
        except BaseException:  # a call that is given up, too: only the store knows now
            self._read_again(live)
            raise
        live.last_event += event is not None
        self._adopt(live, after, own.values(), checkpoints, is_event=event is not None)

    def _adopt(
        self,
        live: LiveExperiment,
        facts: Experiment,
        changed: Iterable[Trial],
        checkpoints: Sequence[CheckpointRecord],
        *,
        is_event: bool,
    ) -> None:
        before = live.facts.state
        live.adopt(facts, changed, self.now())
        live.adopt_checkpoints(checkpoints)
        if facts.state != before:
            log.info("experiment %d: %s: %s", live.number, facts.state, facts.reason)
            self.bell.ring()
        for trial in changed:
            self.bell.ring_for(trial.job)
        if is_event or facts.is_over:
            self.bell.ring_for(f"events-{live.number}")
        if facts.is_over:
            self.live.pop(live.number, None)
        self.holder.note_change()

    async def end_trial(self, live: LiveExperiment, trial: Trial, why: str | None, reason: str) -> None:
        await self.jobs.stop(trial, reason)
        over = trials.ended(trial, why, reason, time.time())
        if live.facts.state in STOPPING:  # the search is not asked any more
            await self.commit(live, changed=[over])
            return
        length = max(live.results[trial.number], default=None)
        await self.fold(live, TrialEnded(trial=trial.number, why=why, length=length), [over])

    async def _settle(self, live: LiveExperiment) -> None:
        """End trials that must, and have no process."""
        while live.facts.state in (wire.ACTIVE, wire.PAUSED) and (idle := self._idle(live, live.must_end)):
            trial = idle[0]
            await self.end_trial(live, trial, trials.ending_why(trial), trials.ending_reason(trial))
        if live.facts.state in STOPPING:
            await self._stop_idle(live)

    def _idle(self, live: LiveExperiment, numbers: Iterable[int]) -> list[Trial]:
        return [live.trials[each] for each in sorted(numbers) if not self.holder.holds(live.number, each)]

    async def _stop_idle(self, live: LiveExperiment) -> None:
        """All at once: a search that was canceled is not asked about them."""
        idle = self._idle(live, [each.number for each in live.trials.values() if not each.is_over])
        reason = f"the experiment is {live.facts.state}"
        for trial in idle:
            await self.jobs.stop(trial, reason)
        is_well = live.facts.state == wire.STOPPING_COMPLETED
        now = time.time()
        over = [
            trials.ended(each, trials.ending_why(each) if is_well or each.ending else USER_CANCELED, reason, now)
            for each in idle
        ]
        if over or not live.num_open:
            await self.commit(live, changed=over, facts=replace(live.facts))

    # --- what follows, without the lock

    async def settle(self, live: LiveExperiment) -> None:
        async with live.lock:
            if not live.is_stale:
                await self._settle(live)

    def follow_up(self, live: LiveExperiment) -> None:
        """After a change, once its lock is free."""
        state = live.facts.state
        if live.facts.needs_sweep and live.facts.is_over:
            self.sweep(live.number)
        if live.ask is not None and not live.is_asking and state in (wire.ACTIVE, wire.PAUSED):
            live.is_asking = True
            self.spawn(self._suggest(live))
        if live.released_in != state and state in LIVE and state != wire.ACTIVE:
            how = KILL if state == wire.STOPPING_KILLED else wire.PARK
            for trial in [each for each in live.trials.values() if not each.is_over]:
                self._release(live, trial, how, f"the experiment is {state}")
        live.released_in = state
        self._reuse.look(live)
        for trial in [live.trials[number] for number in live.must_end]:
            if trial.ending == USER_CANCELED:
                self._release(live, trial, KILL, trial.reason)

    def _release(self, live: LiveExperiment, trial: Trial, how: str, reason: str) -> None:
        if self.holder.holds(live.number, trial.number):
            self.spawn(self._release_stubbornly(live.number, trial.number, how, reason))

    async def _release_stubbornly(self, experiment: int, trial: int, how: str, reason: str) -> None:
        while True:
            try:
                return await self.holder.release(experiment, trial, how, reason)
            except StoreError as error:
                log.error("experiment %d, trial %d: %s", experiment, trial, error)
                await asyncio.sleep(STORE_PAUSE_S)

    async def _suggest(self, live: LiveExperiment) -> None:
        ask = live.ask
        assert ask is not None
        try:
            suggested = await self._suggester.suggest(live.facts.spec, live.config, ask)
        except EverstepError as error:
            await self._fail(live, error)
            return
        finally:
            live.is_asking = False
        await self._change_alone(live, lambda: self.fold(live, suggested))

    async def _change_alone(self, live: LiveExperiment, change: Callable[[], Awaitable[None]]) -> None:
        """Without a caller who would try again: an experiment that is read again asks again."""
        try:
            async with live.lock:
                if live.is_stale or live.facts.state not in (wire.ACTIVE, wire.PAUSED):
                    return
                await change()
                await self._settle(live)
        except StoreError as error:
            log.error("experiment %d: %s", live.number, error)
            self._read_again(live)
            return
        self.follow_up(live)

    async def _fail(self, live: LiveExperiment, error: EverstepError) -> None:
        reason = f"{error.message}" + (f"; {error.hint}" if error.hint else "")

        async def fail() -> None:
            await self.commit(live, facts=replace(live.facts, state=wire.STOPPING_ERROR, reason=reason))

        await self._change_alone(live, fail)

    def sweep(self, number: int) -> None:
        self.spawn(self._sweeper.sweep(number))

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(die_if_failed)

    # --- the pool

    def candidates(self) -> Sequence[Candidate]:
        found: list[Candidate] = []
        for live in self.live.values():
            if live.facts.state == wire.ACTIVE:
                found += [each for each in live.candidates() if self._wants_slot(live, each)]
        return found

    def _wants_slot(self, live: LiveExperiment, each: Candidate) -> bool:
        is_idle = each.is_waiting or each.trial in live.must_end or live.may_reuse(live.trials[each.trial])
        return not is_idle or self.holder.holds(each.experiment, each.trial) > 0

    def order(self, candidate: Candidate) -> wire.AssignmentOrder:
        live = self.live[candidate.experiment]
        trial, spec = live.trials[candidate.trial], live.facts.spec
        warm, same = live.begins_with(trial.number), trial.reused
        return wire.AssignmentOrder(
            number=0,
            slot=0,
            experiment=live.number,
            trial=trial.number,
            trial_id=trial.trial_id,
            job=trial.job,
            key=f"{self._store.identity}-{trial.job}",
            hparams=dict(trial.hparams),
            seed=trial.seed,
            order=spec.order,
            config=spec.config,
            policy=trial_policy(spec),
            warm_start=warm.get("uuid", ""),
            warm_start_uri=warm.get("uri", ""),
            warm_start_step=warm.get("step", 0),
            resume_from=same.get("uuid", ""),
            resume_from_uri=same.get("uri", ""),
            resume_from_step=same.get("step", 0),
        )

    async def placed(self, candidate: Candidate, assignment: int, kind: str) -> None:
        live = await self.find(candidate.experiment)
        trial = None if live is None else live.trials[candidate.trial]
        if live is None or trial is None or trial.is_over or live.facts.state != wire.ACTIVE:
            reason = "the trial wants no slot any more"
            self.spawn(self._release_stubbornly(candidate.experiment, candidate.trial, KILL, reason))
            return
        await self.jobs.open(live.facts, trial)
        async with live.lock:
            now, trial = time.time(), live.trials[candidate.trial]
            live.parking.discard(trial.number)
            begun = live.on_machine(replace(trial, started_at=trial.started_at or now), kind)
            if begun != trial:
                facts = replace(live.facts, started_at=live.facts.started_at or now)
                await self.commit(live, changed=[begun], facts=facts)

    async def vacated(self, experiment: int, trial: int, assignment: int, end: AssignmentEnd) -> None:
        live = await self.find(experiment)
        if live is None:
            return
        async with live.lock:
            known = live.trials[trial]
            if not known.is_over and assignment > known.vacated:
                await self._vacate(live, known, assignment, end)
            await self._settle(live)  # also if this is repeated: the last time may have ended in between
        self.follow_up(live)

    def note_kinds(self, kinds: frozenset[str]) -> None:
        """Of the pool's machines: what may be reused depends on it."""
        if kinds != self._reuse.kinds:
            self._reuse.kinds = kinds
            for live in self.live.values():
                self._reuse.look(live)

    async def buried(self, experiment: int, trial: int, assignment: int) -> None:
        live = await self.find(experiment)
        if live is not None and not live.trials[trial].is_over:
            await self.jobs.bury(live.trials[trial], assignment, "its node is dead")

    async def _vacate(self, live: LiveExperiment, known: Trial, assignment: int, end: AssignmentEnd) -> None:
        live.parking.discard(known.number)
        decided = trials.decide_vacated(
            known,
            end,
            state=live.facts.state,
            is_finished=await self.jobs.is_finished(known),
            max_restarts=live.facts.spec.max_restarts,
        )
        restarts = known.num_restarts + decided.counts
        known = replace(known, vacated=assignment, num_restarts=restarts, reason=decided.reason)
        if not end.is_lost:
            await self.jobs.bury(known, assignment, end.reason or "its node has ended")
        if decided.is_over:
            await self.end_trial(live, known, decided.why, decided.reason)
        else:
            await self.commit(live, changed=[known])

    def note_parking(self, experiment: int, trial: int) -> None:
        """The pool wants the trial's slot: its next question, or the one that is held, is answered so."""
        if live := self.live.get(experiment):
            live.parking.add(trial)
            self.bell.ring_for(wire.trial_job(experiment, trial))


def _row(
    live: LiveExperiment, event: Mapping[str, Any], operations: Sequence[Operation], now: float,
    result: wire.TrialResult | None,
) -> EventRow:  # fmt: skip
    return EventRow(
        experiment=live.number,
        number=live.last_event + 1,
        time=now,
        event=dict(event),
        operations=[to_plain(each) for each in operations],
        batches=0 if result is None else result.batches,
        digest="" if result is None else result.digest,
        is_planned=result is None or result.is_planned,
    )
