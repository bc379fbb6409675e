"""User calls about experiments: create, list, act, change, and the events of their searches."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from sqlalchemy import Connection

from everstep import wire
from everstep.coordinator.clock import steady_time
from everstep.coordinator.experiments import programs
from everstep.coordinator.experiments.checkpoint_records import CheckpointRecords
from everstep.coordinator.experiments.experiments import Experiments
from everstep.coordinator.experiments.facts import DELETED, Experiment, Trial
from everstep.coordinator.experiments.live import LiveExperiment, begin_search
from everstep.coordinator.experiments.owners import ITSELF, check_may_change, may_change
from everstep.coordinator.experiments.results import results_of
from everstep.coordinator.experiments.reuse import check_reuse
from everstep.coordinator.experiments.states import StateChange, decide_action
from everstep.coordinator.experiments.suggesting import check_packages
from everstep.coordinator.experiments.time_limits import check_limit
from everstep.coordinator.experiments.trial_calls import trial_key
from everstep.coordinator.experiments.verification import verification
from everstep.coordinator.experiments.views import best_trials_first, event_view, experiment_view, trial_view
from everstep.coordinator.models.facts import kept_text
from everstep.coordinator.pool.environments import image_problem, images_of
from everstep.coordinator.store.experiment_rows import (
    Changes,
    forget_events,
    forget_secrets,
    read_events,
    read_experiment,
    read_request,
    read_secrets,
    read_trial_key,
    read_trials,
    write_changes,
)
from everstep.coordinator.store.model_rows import read_registered_of
from everstep.coordinator.store.store import Store
from everstep.errors import CONFLICT, UNKNOWN, Refused, UsageError
from everstep.record.log_search import compile_regex
from everstep.search.config import MODEL_BASED, is_smaller_better
from everstep.search.events import USER_CANCELED
from everstep.wire.tokens import Token

LONGEST_HOLD_S = 10.0  # shorter than the client's timeout
NO_SECRETS: Mapping[str, str] = {}
_SORTS = ("trial", "metric")


class ExperimentCalls:
    def __init__(self, store: Store, experiments: Experiments, checkpoints: CheckpointRecords) -> None:
        self._store, self._experiments, self._checkpoints = store, experiments, checkpoints
        self._reader = experiments.reader
        self.on_view: Callable[[wire.ExperimentView], None] = lambda view: None  # of one that is over, once changed

    # --- one experiment

    async def create(
        self, spec: wire.ExperimentSpec, caller: Token = ITSELF, secrets: Mapping[str, str] = NO_SECRETS
    ) -> wire.ExperimentView:
        if not spec.request:
            raise Refused(
                "the request has no name; set `request` to a random string", status=422, code="request-missing"
            )
        async with self._experiments.choosing:
            known = await self._reader.read(lambda connection: read_request(connection, spec.request))
            if known is not None:
                return await self._known_to(known, caller)
            await asyncio.to_thread(check_search, spec)
            await asyncio.to_thread(check_policies, spec)
            check_reuse(spec)
            self._check_webhooks(spec, await self._owner(caller))
            await self._check_source(spec, caller)
            self._check_image(spec, spec.scheduling.pool)
            warm_start = await self._checkpoints.warm_start(spec)
            facts = replace(_new(spec, warm_start), owner=await self._owner(caller), created_by=caller.trial)
            held = {**await self._inherited(spec, caller), **secrets}
            live = await self._experiments.begin(facts, held)
        return await self.view(live.number)

    def _check_webhooks(self, spec: wire.ExperimentSpec, owner: str) -> None:
        """A name without a webhook is a mistake."""
        theirs = {
            each.name
            for each in self._experiments.webhooks.webhooks
            if not each.experiment and (each.is_for_everyone or each.owner == owner)
        }
        for name in () if spec.verifies else spec.webhooks.names:
            if name not in theirs:
                text = f"there is no webhook {name} for this experiment; create it first: everstep webhook create"
                raise Refused(text, status=422, code="webhook-unknown")

    async def _known_to(self, number: int, caller: Token) -> wire.ExperimentView:
        """The view of a repeated request's experiment. A trial only sees those that it created."""
        if caller.trial:
            check_may_change(await self._experiments.facts(number), caller)
        return await self._view_of(number)

    async def _owner(self, caller: Token) -> str:
        """An experiment that a trial creates belongs to the owner of the trial's own experiment."""
        key = trial_key(caller.trial)
        return caller.person if key is None else (await self._experiments.facts(key[0])).owner

    async def _check_source(self, spec: wire.ExperimentSpec, caller: Token) -> None:
        """Trial IDs can be guessed, so a trial may only start from weights of trials in experiments that it created."""
        trial_id = spec.source_trial_id or spec.searcher.get("source_trial_id")
        if not caller.trial or not trial_id:
            return
        key = await self._reader.read(lambda connection: read_trial_key(connection, trial_id))
        if key is not None:
            check_may_change(await self._experiments.facts(key[0]), caller)

    async def _inherited(self, spec: wire.ExperimentSpec, caller: Token) -> Mapping[str, str]:
        """Secrets of the experiment that this one forks or verifies, if the caller may change that experiment."""
        names = wire.secret_names(spec.order)
        if not (names and spec.forked_from):
            return {}
        source = await self._reader.read(lambda connection: read_experiment(connection, spec.forked_from))
        if source is None or not may_change(source, caller):
            return {}
        held = await self._reader.read(lambda connection: read_secrets(connection, spec.forked_from))
        return {name: value for name, value in held.items() if name in names}

    def _check_image(self, spec: wire.ExperimentSpec, pool: str) -> None:
        problem = image_problem(images_of(spec.config), pool, self._experiments.holder.images())
        if problem is not None:
            raise Refused("; ".join(problem), status=422, code="image-not-in-pool")

    async def view(self, number: int) -> wire.ExperimentView:
        facts = await self._known(number)
        return experiment_view(facts, *self._living(facts))

    async def config(self, number: int) -> wire.ExperimentConfig:
        spec = (await self._known(number)).spec
        return wire.ExperimentConfig(config=spec.config, written=spec.written, spec=spec)

    async def act(self, number: int, message: wire.ExperimentAction, caller: Token = ITSELF) -> wire.ExperimentView:
        check_may_change(await self._experiments.facts(number), caller)
        live = await self._experiments.find(number)
        if live is None:
            await self._act_on_ended(number, message)
            view = await self._view_of(number)
            self.on_view(view)
            return view
        async with self._experiments.changing(live):
            change = decide_action(
                number,
                live.facts.state,
                is_archived=live.facts.is_archived,
                action=message.action,
                why=message.reason,
                num_open=live.num_open,
            )
            if change is not None:
                facts = replace(live.facts, state=change.state, reason=change.reason)
                await self._experiments.commit(live, facts=facts)
        return await self.view(number)

    async def _act_on_ended(self, number: int, message: wire.ExperimentAction) -> None:
        def write(connection: Connection) -> bool:
            facts = _there(read_experiment(connection, number))  # others may have changed it meanwhile
            change = decide_action(
                number,
                facts.state,
                is_archived=facts.is_archived,
                action=message.action,
                why=message.reason,
                num_open=0,
            )
            is_deleted = change is not None and change.state == DELETED
            if change is not None:
                registered = read_registered_of(connection, number) if is_deleted else {}
                acted = _acted(facts, replace(change, reason=change.reason + kept_text(registered)))
                write_changes(connection, Changes(experiment=acted))
            if is_deleted:
                forget_events(connection, number)
                forget_secrets(connection, number)
            return is_deleted

        if await self._store.write(write):
            self._experiments.sweep(number)

    async def _view_of(self, number: int) -> wire.ExperimentView:
        """The view of an experiment, even if it was deleted."""
        facts = await self._experiments.facts(number)
        return experiment_view(facts, *self._living(facts))

    async def change(self, number: int, message: wire.ExperimentChange, caller: Token = ITSELF) -> wire.ExperimentView:
        check_may_change(await self._known(number), caller)
        live = await self._experiments.find(number)
        if live is None:
            if await self._store.write(lambda connection: _write_changed(connection, number, message)):
                self._experiments.sweep(number)
        else:
            async with live.lock:
                before = live.facts.scheduling
                facts = _changed(live.facts, message)
                self._check_sharing(live, facts)
                await self._experiments.commit(live, facts=facts)
            if live.facts.scheduling != before:
                self._experiments.holder.note_change()
        view = await self.view(number)
        if live is None:
            self.on_view(view)
        return view

    def _check_sharing(self, live: LiveExperiment, facts: Experiment) -> None:
        """Refuse what would end the experiment at once."""
        shared, before, holder = facts.scheduling, live.facts.scheduling, self._experiments.holder
        if shared.time_limit_s != before.time_limit_s:
            check_limit(facts, steady_time())
        if shared.pool != before.pool:
            self._check_image(facts.spec, shared.pool)
        if (shared.pool, shared.max_slots) == (before.pool, before.max_slots):
            return
        for each in live.candidates()[:1]:
            changed = replace(each, pool=shared.pool, experiment_max_slots=shared.max_slots)
            if reason := holder.why_never(changed):
                text = f"the change would end experiment {facts.number}, which {reason}; to end it, cancel it"
                raise Refused(text, status=CONFLICT, code="change-ends-experiment")

    # --- its trials

    async def trials(self, number: int, start: int, limit: int, sort: str) -> wire.TrialList:
        check_sort(sort)
        facts = await self._known(number)
        found = list((await self._trials_of(facts)).values())
        found.sort(key=lambda each: each.number)
        if sort == "metric":
            found = best_trials_first(found, smaller_is_better=is_smaller_better(facts.spec.searcher))
        holder = self._experiments.holder
        views = [trial_view(each, holder, facts.state) for each in found[start : start + limit]]
        return wire.TrialList(trials=views, num_found=len(found))

    async def trial(self, number: int, trial: int) -> wire.TrialView:
        facts = await self._known(number)
        return trial_view(await self._trial(number, trial), self._experiments.holder, facts.state)

    async def find_trial(self, trial_id: int) -> wire.TrialView:
        key = await self._reader.read(lambda connection: read_trial_key(connection, trial_id))
        if key is None:
            raise Refused(f"there is no trial with the ID {trial_id}", status=UNKNOWN, code="trial-unknown")
        return await self.trial(*key)

    async def kill_trial(self, number: int, trial: int, caller: Token = ITSELF) -> wire.TrialView:
        check_may_change(await self._known(number), caller)
        found = await self._trial(number, trial)
        live = await self._experiments.find(number)
        if live is None and not found.is_over:  # it ended meanwhile
            return await self.trial(number, trial)
        if live is not None:
            async with self._experiments.changing(live):
                found = live.trials[trial]
                if not found.is_over and not found.ending:
                    killed = replace(found, ending=USER_CANCELED, reason="killed by a user")
                    await self._experiments.commit(live, changed=[killed])
        return await self.trial(number, trial)

    async def results(self, number: int, trial: int) -> wire.TrialResults:
        await self._trial(number, trial)
        rows = await self._reader.read(lambda connection: read_events(connection, number, 0))
        results, targets = results_of(rows, trial)
        return wire.TrialResults(results=[each for _, each in sorted(results.items())], targets=targets)

    async def verify(self, number: int, trial: int, request: str, caller: Token = ITSELF) -> wire.ExperimentView:
        """Train it again, from its beginning to the lengths of its results."""
        facts = await self._known(number)
        check_may_change(facts, caller)
        found = await self._trial(number, trial)
        live = self._experiments.live.get(number)
        begins_with = facts.warm_start if live is None else live.begins_with(trial)
        if live is None and (created := await self._created(number, trial)):
            begins_with = created.get("checkpoint") or begins_with
        spec = verification(facts, found, await self.results(number, trial), request, begins_with=begins_with)
        return await self.create(spec, replace(caller, person=facts.owner))

    async def _created(self, number: int, trial: int) -> Mapping[str, Any]:
        rows = await self._reader.read(lambda connection: read_events(connection, number, 0))
        made = (each for row in rows for each in row.operations if each["kind"] == "create")
        return next((each for each in made if each["trial"] == trial), {})

    # --- its search

    async def events(self, number: int, after: int, limit: int, *, is_held: bool) -> wire.SearchEvents:
        await self._known(number)
        deadline = time.monotonic() + LONGEST_HOLD_S * is_held
        while True:
            live = self._experiments.live.get(number)
            is_over = live is None
            rows = []
            if is_over or (live is not None and live.last_event > after):
                rows = await self._reader.read(lambda connection: read_events(connection, number, after, limit))
            if rows or is_over or (left_s := deadline - time.monotonic()) <= 0:
                return wire.SearchEvents(events=[event_view(each) for each in rows], is_over=is_over)
            await self._experiments.bell.wait(left_s, f"events-{number}")

    async def search_state(self, number: int) -> wire.SearchState:
        facts = await self._known(number)
        live = self._experiments.live.get(number)
        last = live.last_event if live is not None else facts.summary.get("last_event", 0)
        return wire.SearchState(after_event=facts.program_after, state=facts.program_state, last_event=last)

    async def search_operations(
        self, number: int, message: wire.SearchOperations, caller: Token = ITSELF
    ) -> wire.SearchState:
        check_may_change(await self._known(number), caller)
        live = await self._experiments.find(number)
        if live is not None:
            async with self._experiments.choosing, self._experiments.changing(live):
                is_new = message.after_event > live.facts.program_after
                if is_new and live.facts.state in (wire.ACTIVE, wire.PAUSED):
                    await self._take_operations(live, message)
        return await self.search_state(number)

    async def _take_operations(self, live: LiveExperiment, message: wire.SearchOperations) -> None:
        if message.after_event > live.last_event:
            raise Refused(
                f"these operations follow event {message.after_event}, but the last event is {live.last_event}",
                code="search-event-ahead",
            )
        closed = live.search.closed_by(message.operations)

        def is_ending(trial: Trial) -> bool:
            is_closed = trial.experiment == live.number and trial.number in closed and trial.is_waiting
            return trial.must_end or is_closed

        find = partial(self._checkpoints.start_from, is_ending=is_ending)
        event = await programs.read_operations(live.config, message, find)
        facts = replace(live.facts, program_after=message.after_event, program_state=message.state)
        try:
            await self._experiments.fold(live, event, facts=facts)
        except UsageError as error:
            raise Refused(error.message, status=422, hint=error.hint, code=error.code) from None

    # --- finding

    async def _known(self, number: int) -> Experiment:
        facts = await self._experiments.facts(number)
        if facts.state == DELETED:
            raise Refused(f"experiment {number} was deleted", status=UNKNOWN, code="experiment-unknown")
        return facts

    def _living(self, facts: Experiment) -> tuple[Any, Mapping[int, Trial], Any]:
        live = self._experiments.live.get(facts.number)
        return (live, live.trials if live else {}, self._experiments.holder)

    async def _trials_of(self, facts: Experiment) -> Mapping[int, Trial]:
        if live := self._experiments.live.get(facts.number):
            return live.trials
        rows = await self._reader.read(lambda connection: read_trials(connection, facts.number))
        return {each.number: each for each in rows}

    async def _trial(self, number: int, trial: int) -> Trial:
        trials = await self._trials_of(await self._known(number))
        if trial not in trials:
            text = f"experiment {number} has no trial {trial}; its trials so far: {len(trials)}"
            raise Refused(text, status=UNKNOWN, code="trial-unknown")
        return trials[trial]


def check_policies(spec: wire.ExperimentSpec) -> None:
    for policy in spec.log_policies:
        try:
            compile_regex(policy.pattern)
        except UsageError as error:
            text = f"log policy {policy.title}: {error.message}"
            raise Refused(text, status=422, hint=error.hint, code=error.code) from None


def check_search(spec: wire.ExperimentSpec) -> None:
    """Refuse a bad search before anything is stored."""
    try:
        config, _ = begin_search(spec)
        if config.name in MODEL_BASED:
            check_packages(config.name)
    except UsageError as error:
        hint = f"; {error.hint}" if error.hint else ""
        raise Refused(f"{error.message}{hint}", status=422, code=error.code) from None


def check_sort(sort: str) -> None:
    if sort not in _SORTS:
        raise Refused(f"cannot sort by {sort!r}: use {' or '.join(_SORTS)}", status=422, code="parameter-invalid")


def _new(spec: wire.ExperimentSpec, warm_start: Mapping[str, Any]) -> Experiment:
    return Experiment(
        number=0,
        request=spec.request,
        name=spec.name,
        description=spec.description,
        labels=tuple(spec.labels),
        notes=spec.notes,
        state=wire.PAUSED if spec.is_paused else wire.ACTIVE,
        reason="created, paused" if spec.is_paused else "created",
        spec=spec,
        kept=spec.kept,
        scheduling=spec.scheduling,
        warm_start=warm_start,
        created_at=time.time(),
    )


def _there(experiment: Experiment | None) -> Experiment:
    assert experiment is not None  # none is ever removed
    return experiment


def _acted(facts: Experiment, change: StateChange) -> Experiment:
    is_deleted = change.state == DELETED
    return replace(
        facts,
        state=change.state,
        is_archived=change.is_archived,
        reason=change.reason if is_deleted else facts.reason,
        needs_sweep=facts.needs_sweep or is_deleted,
    )


def _write_changed(connection: Connection, number: int, message: wire.ExperimentChange) -> bool:
    """Change an experiment that is over. Returns whether to sweep it."""
    after = _changed(_there(read_experiment(connection, number)), message)
    write_changes(connection, Changes(experiment=after))
    return after.needs_sweep


def _changed(facts: Experiment, message: wire.ExperimentChange) -> Experiment:
    given = {name: getattr(message, name) for name in ("name", "description", "notes", "kept")}
    changes = {name: value for name, value in given.items() if value is not None}
    if message.labels is not None:
        changes["labels"] = tuple(message.labels)
    names = ("pool", "priority", "weight", "max_slots", "time_limit_s")
    scheduling = {name: getattr(message, name) for name in names}
    changes["scheduling"] = replace(
        facts.scheduling, **{name: value for name, value in scheduling.items() if value is not None}
    )
    sweeps = message.kept is not None and message.kept != facts.kept and facts.state in wire.ENDED
    return replace(facts, **changes, needs_sweep=facts.needs_sweep or sweeps)
