"""All experiments of a coordinator. One event, one transaction: the event with its operations, and the trials that
they change.

A coordinator that is killed between any two lines continues from the store, because memory only repeats the store:
events are folded again, and their consequences are carried out again. Slots are released outside an experiment's lock,
because the pool calls back."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import ChainMap
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from everstep import wire
from everstep.coordinator.clock import Now, steady_time
from everstep.coordinator.experiments import trials
from everstep.coordinator.experiments.facts import LIVE, STOPPING, CheckpointRecord, Experiment, Trial
from everstep.coordinator.experiments.live import BEGAN, LiveExperiment, summary_of
from everstep.coordinator.experiments.parked import ended_keys, machine_key
from everstep.coordinator.experiments.results import remembered
from everstep.coordinator.experiments.reusing import TrialReuse
from everstep.coordinator.experiments.seam import AssignmentEnd, Candidate, NoSlots, SlotHolder, TrialPace
from everstep.coordinator.experiments.states import ended_if_over
from everstep.coordinator.experiments.suggesting import Suggester
from everstep.coordinator.experiments.sweeping import CheckpointSweeper
from everstep.coordinator.experiments.time_limits import ends_at, stopped_if_late, timed
from everstep.coordinator.experiments.trial_jobs import TrialJobs, trial_policy
from everstep.coordinator.experiments.vacating import vacate
from everstep.coordinator.store.experiment_rows import (
    Changes,
    EventRow,
    read_beginning,
    read_checkpoints,
    read_experiment,
    read_lent,
    read_live,
    read_secrets,
    write_changes,
)
from everstep.coordinator.store.store import Store
from everstep.coordinator.store.store_reader import StoreReader
from everstep.coordinator.store.webhook_rows import LogScan
from everstep.coordinator.trial_tokens import TrialTokens
from everstep.coordinator.turns import Turns
from everstep.coordinator.vital_tasks import die_if_failed
from everstep.coordinator.waiters import Bell
from everstep.coordinator.webhooks.book import WebhookBook
from everstep.coordinator.webhooks.facts import Delivery
from everstep.coordinator.webhooks.triggers import deliveries_of
from everstep.errors import UNKNOWN, EverstepError, PermanentError, Refused
from everstep.search.events import ERRORED, USER_CANCELED, Event, Operation, TrialEnded, to_plain
from everstep.storage.database import StoreError

log = logging.getLogger(__name__)

STORE_PAUSE_S = 0.5
SHORTEST_LOOK_S, LONGEST_LOOK_S = 0.05, 60.0  # between two looks at time limits, unless something changes


OnChange = Callable[[LiveExperiment, Iterable[Trial], Mapping[str, Any] | None], None]


class Experiments:
    """Implements `seam.TrialSource`."""

    def __init__(
        self,
        store: Store,
        reader: StoreReader,
        jobs: TrialJobs,
        turns: Turns,
        now: Now,
        *,
        webhooks: WebhookBook,
        ring_outbox: Callable[[], None],
    ) -> None:
        """`ring_outbox`: called when there is something to tell webhooks."""
        self.webhooks, self.ring_outbox = webhooks, ring_outbox
        self.search_log: Callable[[str], Awaitable[None]] | None = None  # waits until a job's log has been searched
        self.reader, self.jobs, self.now = reader, jobs, now
        self.holder: SlotHolder = NoSlots()
        self.bell = Bell(turns)  # a group per trial's job, and `events-NUMBER` per experiment
        self._store = store
        self.live: dict[int, LiveExperiment] = {}
        self._last_number = self._last_trial_id = 0
        self.choosing = asyncio.Lock()  # before an experiment's: a new experiment, or a checkpoint to begin with
        self._tasks: set[asyncio.Task[None]] = set()
        self._reading_again: set[int] = set()
        self._has_news = asyncio.Event()  # an experiment may end sooner or later than it seemed
        self.on_change: list[OnChange] = []  # called after each change that was stored
        self._suggester = Suggester()
        self._reuse = TrialReuse(self)
        self._tokens = TrialTokens(store.trial_secret)
        self.sweeper = CheckpointSweeper(store, self.begun_with, self.choosing, jobs.remove)

    async def start(self, holder: SlotHolder | None = None) -> None:
        """Continue what the store holds. The pool must know its slots by now."""
        self.holder = holder or self.holder
        begun = await self._store.in_thread(lambda: self._store.read(read_beginning))
        self._last_number, self._last_trial_id = begun.last_experiment, begun.last_trial_id
        for number in begun.live:
            await self._load(number)
        await self._read_jobs()
        for number in begun.unswept:
            self.sweep(number)
        self.spawn(self._watch_time())

    async def _read_jobs(self) -> None:
        """Read the jobs of trials that hold slots: how many slots a trial can use depends on its job."""
        for live in self.live.values():
            for trial in [each for each in live.trials.values() if self.holder.holds(live.number, each.number)]:
                await self.jobs.read(trial)

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
        """The experiment in memory. None: it is over, or does not exist."""
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

    def knows(self, number: str) -> bool:
        """Whether there is an experiment of this number, as a text."""
        if not (number.isascii() and number.isdigit() and len(number) < 16) or number.startswith("0"):
            return False
        return 0 < int(number) <= self._last_number

    def begun_with(self) -> set[str]:
        """The UUIDs of the checkpoints that open trials start from."""
        return {uuid for live in self.live.values() for uuid in live.begun_with()}

    async def _load(self, number: int) -> None:
        loaded = await self._store.in_thread(lambda: self._store.read(lambda c: read_live(c, number)))
        saved = await self._store.in_thread(lambda: self._store.read(lambda c: read_checkpoints(c, number)))
        lent = await self._store.in_thread(lambda: self._store.read(lambda c: read_lent(c, number)))
        held = await self._store.in_thread(lambda: self._store.read(lambda c: read_secrets(c, number)))
        if loaded is None or loaded.experiment.is_over:
            self.live.pop(number, None)
            if loaded is not None and loaded.experiment.needs_sweep:
                self.sweep(number)
            return
        live = await asyncio.to_thread(remembered, loaded, saved, self.now())
        live.secrets = held
        for each in lent:
            live.borrowed[each.trial].append(each)
        self.live[number] = live
        async with live.lock:
            await self._settle(live)
        self.follow_up(live)

    def _read_again(self, live: LiveExperiment) -> None:
        """A failed write may still have reached the store: read it again. One task, so that no reload overwrites what
        another has read and changed."""
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

    async def begin(self, facts: Experiment, secrets: Mapping[str, str]) -> LiveExperiment:
        """Begin a new experiment. Hold the lock `choosing`."""
        live = await asyncio.to_thread(LiveExperiment, replace(facts, number=self._last_number + 1))
        live.secrets = secrets
        operations = await asyncio.to_thread(live.apply, None)
        self._last_number = live.number  # also if the write seems to fail: it may have reached the store
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
        deliveries: Sequence[Delivery] = (),
        log_scan: LogScan | None = None,
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
        after = timed(ended_if_over(facts or live.facts, operations, num_open, now), steady_time())
        if after.is_over and not live.facts.is_over:
            live.last_event += event is not None
            after = replace(after, summary=summary_of(live, ChainMap(own, live.trials)))
            live.last_event -= event is not None
        self._last_trial_id = max([self._last_trial_id, *(each.trial_id for each in own.values())])
        both = [(live.trials.get(number), each) for number, each in own.items()]
        told_of = [*deliveries, *deliveries_of(self.webhooks.webhooks, live.facts, after, both, now)]
        changes = Changes(
            experiment=after if after is not live.facts or event is BEGAN else None,
            secrets=live.secrets if event is BEGAN else {},
            trials=list(own.values()),
            event=None if event is None else _row(live, event, operations, now, result),
            checkpoints=checkpoints,
            deliveries=told_of,
            log_scan=log_scan,
        )
        try:
            await self._store.write(lambda connection: write_changes(connection, changes))
        except BaseException:  # also after a canceled call: only the store knows now
            self._read_again(live)
            raise
        finally:
            if told_of:
                self.ring_outbox()
        live.last_event += event is not None
        self._adopt(live, after, own.values(), checkpoints, is_event=event is not None)
        for listener in self.on_change:
            listener(live, own.values(), None if event is None else {**event, "time": now})

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
        self._has_news.set()
        self.holder.note_change()

    async def end_trial(self, live: LiveExperiment, trial: Trial, why: str | None, reason: str) -> None:
        await self.jobs.stop(trial, reason)
        over = trials.ended(trial, why, reason, time.time())
        if live.facts.state in STOPPING:  # the search is no longer asked
            await self.commit(live, changed=[over])
            return
        length = max(live.results[trial.number], default=None)
        await self.fold(live, TrialEnded(trial=trial.number, why=why, length=length), [over])

    async def _settle(self, live: LiveExperiment, vacant: int = 0) -> None:
        """End trials that must end and have no process. `vacant`: a trial that has none either, unknown to the pool."""
        while live.facts.state in (wire.ACTIVE, wire.PAUSED) and (idle := self._idle(live, live.must_end, vacant)):
            trial = idle[0]
            await self.end_trial(live, trial, trials.ending_why(trial), trials.ending_reason(trial))
        if live.facts.state in STOPPING:
            await self._stop_idle(live, vacant)

    def _idle(self, live: LiveExperiment, numbers: Iterable[int], vacant: int) -> list[Trial]:
        holds = self.holder.holds
        return [live.trials[each] for each in sorted(numbers) if each == vacant or not holds(live.number, each)]

    async def _stop_idle(self, live: LiveExperiment, vacant: int) -> None:
        """Stop all idle trials together. A canceled search is not asked about them."""
        idle = self._idle(live, [each.number for each in live.trials.values() if not each.is_over], vacant)
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

    @asynccontextmanager
    async def changing(self, live: LiveExperiment) -> AsyncIterator[None]:
        """Hold the experiment's lock, then follow up even if nothing changed: the last try may have stopped halfway."""
        async with live.lock:
            yield
        await self.settle(live)
        self.follow_up(live)

    async def settle(self, live: LiveExperiment) -> None:
        async with live.lock:
            if not live.is_stale:
                await self._settle(live)

    def follow_up(self, live: LiveExperiment) -> None:
        """Carry out what a change leads to, once the experiment's lock is free."""
        state = live.facts.state
        if live.facts.needs_sweep and live.facts.is_over:
            self.sweep(live.number)
        if live.ask is not None and not live.is_asking and state in (wire.ACTIVE, wire.PAUSED):
            live.is_asking = True
            self.spawn(self._suggest(live))
        if live.released_in != state and state in LIVE and state != wire.ACTIVE:
            how = wire.KILL if state == wire.STOPPING_KILLED else wire.PARK
            for trial in [each for each in live.trials.values() if not each.is_over]:
                self.release(live, trial, how, f"the experiment is {state}")
        live.released_in = state
        self._reuse.look(live)
        for trial in [live.trials[number] for number in live.must_end]:
            if trial.ending in (USER_CANCELED, ERRORED):
                self.release(live, trial, wire.KILL, trial.reason)

    def release(self, live: LiveExperiment, trial: Trial, how: str, reason: str) -> None:
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
        """Make a change that no caller would retry: after a failure, the reloaded experiment asks again."""
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

    # --- time limits

    async def _watch_time(self) -> None:
        while True:
            for live in [
                each for each in self.live.values() if stopped_if_late(each.facts, steady_time()) != each.facts
            ]:
                await self._change_alone(live, partial(self._stop_if_late, live))
            times = [at for each in self.live.values() if (at := ends_at(each.facts)) is not None]
            wait_s = min([at - steady_time() for at in times], default=LONGEST_LOOK_S)
            timer = asyncio.get_running_loop().call_later(
                min(max(wait_s, SHORTEST_LOOK_S), LONGEST_LOOK_S), self._has_news.set
            )
            try:
                await self._has_news.wait()
            finally:
                timer.cancel()
            self._has_news.clear()

    async def _stop_if_late(self, live: LiveExperiment) -> None:
        if (facts := stopped_if_late(live.facts, steady_time())) != live.facts:
            await self.commit(live, facts=facts)

    def sweep(self, number: int) -> None:
        """Sweep this experiment, and those whose checkpoints it may have used."""
        for each in {number, *self.sweeper.lenders}:
            self.spawn(self.sweeper.sweep(each))

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
                found += [self.jobs.sized(live, each, self.holder) for each in live.wanting(self.holder)]
        return found

    def progress(self, experiment: int, trial: int) -> TrialPace | None:
        live = self.live.get(experiment)
        return None if live is None else self.jobs.progress(live.trials[trial])

    def refuse(self, experiment: int, reason: str) -> None:
        live = self.live.get(experiment)
        if live is not None and live.facts.state == wire.ACTIVE:
            self.spawn(self._fail(live, PermanentError(reason, code="pool-too-small")))

    def ended(self, keys: Collection[str]) -> list[str]:
        return ended_keys(keys, self._store.identity, self.live)

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
            token=str(self._tokens.of(trial.job)),
            secrets=dict(live.secrets),
            key=machine_key(self._store.identity, trial.job),
            hparams=dict(trial.hparams),
            seed=trial.seed,
            order=spec.order,
            config=spec.config,
            policy=asdict(trial_policy(spec)),
            warm_start=warm.get("uuid", ""),
            warm_start_uri=warm.get("uri", ""),
            warm_start_step=warm.get("step", 0),
            resume_from=same.get("uuid", ""),
            resume_from_uri=same.get("uri", ""),
            resume_from_step=same.get("step", 0),
        )

    async def placed(self, candidate: Candidate, assignment: int, kind: str, *, is_first: bool) -> bool:
        live = await self.find(candidate.experiment)
        trial = None if live is None else live.trials[candidate.trial]
        if live is None or trial is None or trial.is_over or live.facts.state != wire.ACTIVE:
            return False
        if not await self.jobs.open(live.facts, trial, is_first=is_first):
            return False
        async with live.lock:
            now, trial = time.time(), live.trials[candidate.trial]
            live.parking.discard(trial.number)
            begun = live.on_machine(replace(trial, started_at=trial.started_at or now), kind)
            if begun != trial:
                facts = replace(live.facts, started_at=live.facts.started_at or now)
                await self.commit(live, changed=[begun], facts=facts)
        return True

    async def vacated(
        self, experiment: int, trial: int, assignment: int, end: AssignmentEnd, others: Sequence[int]
    ) -> None:
        live = await self.find(experiment)
        if live is None:
            return
        if self.search_log is not None and not live.trials[trial].is_over:
            await self.search_log(live.trials[trial].job)  # its last lines may decide what follows
        async with live.lock:
            known = live.trials[trial]
            if not known.is_over:
                await vacate(self, live, known, assignment, end, others)
            # Also if this is repeated: the last time may have ended in between.
            await self._settle(live, vacant=0 if others else trial)
        self.follow_up(live)

    def note_kinds(self, kinds: Mapping[str, frozenset[str]]) -> None:
        """Kinds of each pool's machines: results may only be reused on the same kind."""
        if kinds != self._reuse.kinds:
            self._reuse.kinds = kinds
            for live in self.live.values():
                self._reuse.look(live)

    async def buried(self, experiment: int, trial: int, assignment: int) -> None:
        live = await self.find(experiment)
        if live is not None and not live.trials[trial].is_over:
            await self.jobs.bury(live.trials[trial], assignment, "its node died")

    def note_shrinking(self, experiment: int, trial: int) -> None:
        self.bell.ring_for(wire.trial_job(experiment, trial))

    def note_parking(self, experiment: int, trial: int) -> None:
        """The pool wants the trial's slot: answer the trial's held or next question with park."""
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
