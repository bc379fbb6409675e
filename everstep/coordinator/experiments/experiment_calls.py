"""The calls of people about experiments: create, list, act, change, and the events of their searches."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection

from everstep import wire
from everstep.coordinator.experiments import programs
from everstep.coordinator.experiments.checkpoint_records import CheckpointRecords
from everstep.coordinator.experiments.experiments import Experiments
from everstep.coordinator.experiments.facts import DELETED, Experiment, Trial
from everstep.coordinator.experiments.live import LiveExperiment, begin_search
from everstep.coordinator.experiments.results import results_of
from everstep.coordinator.experiments.reuse import check_reuse
from everstep.coordinator.experiments.states import StateChange, decide_action
from everstep.coordinator.experiments.verification import verification
from everstep.coordinator.experiments.views import best_trials_first, event_view, experiment_view, trial_view
from everstep.coordinator.store.experiment_rows import (
    Changes,
    forget_events,
    read_events,
    read_experiment,
    read_experiments,
    read_request,
    read_trial_key,
    read_trials,
    write_changes,
)
from everstep.coordinator.store.store import Store
from everstep.errors import UNKNOWN, Refused, UsageError
from everstep.search.events import USER_CANCELED

LONGEST_HOLD_S = 10.0  # less than the client waits for an answer
_SORTS = ("trial", "metric")


class ExperimentCalls:
    def __init__(self, store: Store, experiments: Experiments, checkpoints: CheckpointRecords) -> None:
        self._store, self._experiments, self._checkpoints = store, experiments, checkpoints
        self._reader = experiments.reader

    # --- one experiment

    async def create(self, spec: wire.ExperimentSpec) -> wire.ExperimentView:
        if not spec.request:
            raise Refused("an experiment needs a request's name; give a random one", status=422, code="request-missing")
        async with self._experiments.creating:
            known = await self._reader.read(lambda connection: read_request(connection, spec.request))
            if known is not None:
                return await self._view_of(known)
            check_search(spec)
            check_reuse(spec)
            warm_start = await self._checkpoints.warm_start(spec)
            live = await self._experiments.begin(_new(spec, warm_start))
        return await self.view(live.number)

    async def view(self, number: int) -> wire.ExperimentView:
        facts = await self._known(number)
        return experiment_view(facts, *self._living(facts))

    async def config(self, number: int) -> wire.ExperimentConfig:
        spec = (await self._known(number)).spec
        return wire.ExperimentConfig(config=spec.config, written=spec.written, spec=spec)

    async def find(
        self, start: int, limit: int, *, search: str, states: list[str], is_archived: bool
    ) -> wire.ExperimentList:
        rows = await self._reader.read(read_experiments)
        live = self._experiments.live
        found = [live[each.number].facts if each.number in live else each for each in rows]
        found = [each for each in found if is_archived or not (each.is_archived or each.spec.verifies)]
        found = [each for each in found if _matches(each, search, states)]
        views = [experiment_view(each, *self._living(each)) for each in found[start : start + limit]]
        return wire.ExperimentList(experiments=views, num_found=len(found))

    async def act(self, number: int, message: wire.ExperimentAction) -> wire.ExperimentView:
        live = await self._experiments.find(number)
        if live is None:
            await self._act_on_ended(number, message)
            return await self._view_of(number)
        async with live.lock:
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
        await self._experiments.settle(live)  # also if it is repeated: the last time may have ended in between
        self._experiments.follow_up(live)
        return await self.view(number)

    async def _act_on_ended(self, number: int, message: wire.ExperimentAction) -> None:
        await self._experiments.facts(number)

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
            if change is not None:
                write_changes(connection, Changes(experiment=_acted(facts, change)))
            if is_deleted := change is not None and change.state == DELETED:
                forget_events(connection, number)
            return is_deleted

        if await self._store.write(write):
            self._experiments.sweep(number)

    async def _view_of(self, number: int) -> wire.ExperimentView:
        """Also of one that was deleted."""
        facts = await self._experiments.facts(number)
        return experiment_view(facts, *self._living(facts))

    async def change(self, number: int, message: wire.ExperimentChange) -> wire.ExperimentView:
        live = await self._experiments.find(number)
        if live is None:
            await self._known(number)
            if await self._store.write(lambda connection: _write_changed(connection, number, message)):
                self._experiments.sweep(number)
        else:
            async with live.lock:
                await self._experiments.commit(live, facts=_changed(live.facts, message))
        return await self.view(number)

    # --- its trials

    async def trials(self, number: int, start: int, limit: int, sort: str) -> wire.TrialList:
        check_sort(sort)
        facts = await self._known(number)
        found = list((await self._trials_of(facts)).values())
        found.sort(key=lambda each: each.number)
        if sort == "metric":
            found = best_trials_first(found, smaller_is_better=is_smaller_better(facts))
        holder = self._experiments.holder
        views = [trial_view(each, holder.holds(number, each.number)) for each in found[start : start + limit]]
        return wire.TrialList(trials=views, num_found=len(found))

    async def trial(self, number: int, trial: int) -> wire.TrialView:
        found = await self._trial(number, trial)
        return trial_view(found, self._experiments.holder.holds(number, trial))

    async def find_trial(self, trial_id: int) -> wire.TrialView:
        key = await self._reader.read(lambda connection: read_trial_key(connection, trial_id))
        if key is None:
            raise Refused(f"there is no trial with the ID {trial_id}", status=UNKNOWN, code="trial-unknown")
        return await self.trial(*key)

    async def kill_trial(self, number: int, trial: int) -> wire.TrialView:
        found = await self._trial(number, trial)
        live = await self._experiments.find(number)
        if live is None and not found.is_over:  # it ended meanwhile
            return await self.trial(number, trial)
        if live is not None:
            async with live.lock:
                found = live.trials[trial]
                if not found.is_over and not found.ending:
                    killed = replace(found, ending=USER_CANCELED, reason="killed by a person")
                    await self._experiments.commit(live, changed=[killed])
            await self._experiments.settle(live)
            self._experiments.follow_up(live)
        return await self.trial(number, trial)

    async def results(self, number: int, trial: int) -> wire.TrialResults:
        await self._trial(number, trial)
        rows = await self._reader.read(lambda connection: read_events(connection, number, 0))
        results, targets = results_of(rows, trial)
        return wire.TrialResults(results=[each for _, each in sorted(results.items())], targets=targets)

    async def verify(self, number: int, trial: int, request: str) -> wire.ExperimentView:
        """Train it again, from the beginning to the lengths that it has results of."""
        facts, found = await self._known(number), await self._trial(number, trial)
        live = self._experiments.live.get(number)
        begins_with = facts.warm_start if live is None else live.begins_with(trial)
        if live is None and (created := await self._created(number, trial)):
            begins_with = created.get("checkpoint") or begins_with
        spec = verification(facts, found, await self.results(number, trial), request, begins_with=begins_with)
        return await self.create(spec)

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

    async def search_operations(self, number: int, message: wire.SearchOperations) -> wire.SearchState:
        await self._known(number)
        live = await self._experiments.find(number)
        if live is not None:
            async with live.lock:
                is_new = message.after_event > live.facts.program_after
                if is_new and live.facts.state in (wire.ACTIVE, wire.PAUSED):
                    await self._take_operations(live, message)
            await self._experiments.settle(live)
            self._experiments.follow_up(live)
        return await self.search_state(number)

    async def _take_operations(self, live: LiveExperiment, message: wire.SearchOperations) -> None:
        if message.after_event > live.last_event:
            raise Refused(
                f"operations after event {message.after_event}; the last event is {live.last_event}",
                code="search-event-ahead",
            )
        event = await programs.read_operations(live.config, message, self._checkpoints.start_from)
        facts = replace(live.facts, program_after=message.after_event, program_state=message.state)
        try:
            await self._experiments.fold(live, event, facts=facts)
        except UsageError as error:
            raise Refused(error.message, status=422, code=error.code) from None

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
            text = f"experiment {number} has no trial {trial}; it has {len(trials)}"
            raise Refused(text, status=UNKNOWN, code="trial-unknown")
        return trials[trial]


def check_search(spec: wire.ExperimentSpec) -> None:
    """Before anything is kept."""
    try:
        begin_search(spec)
    except UsageError as error:
        hint = f"; {error.hint}" if error.hint else ""
        raise Refused(f"{error.message}{hint}", status=422, code=error.code) from None


def check_sort(sort: str) -> None:
    if sort not in _SORTS:
        raise Refused(f"cannot sort by {sort!r}: use {' or '.join(_SORTS)}", status=422, code="parameter-invalid")


def is_smaller_better(facts: Experiment) -> bool:
    return bool(facts.spec.searcher.get("smaller_is_better", True))


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
    """Of one that is over. Whether it is to be swept."""
    after = _changed(_there(read_experiment(connection, number)), message)
    write_changes(connection, Changes(experiment=after))
    return after.needs_sweep


def _changed(facts: Experiment, message: wire.ExperimentChange) -> Experiment:
    given = {name: getattr(message, name) for name in ("name", "description", "notes", "kept")}
    changes = {name: value for name, value in given.items() if value is not None}
    if message.labels is not None:
        changes["labels"] = tuple(message.labels)
    sweeps = message.kept is not None and message.kept != facts.kept and facts.state in wire.ENDED
    return replace(facts, **changes, needs_sweep=facts.needs_sweep or sweeps)


def _matches(facts: Experiment, search: str, states: list[str]) -> bool:
    if states and facts.state not in states:
        return False
    texts = (str(facts.number), facts.name, facts.description, *facts.labels)
    return not search or any(search.lower() in each.lower() for each in texts)
