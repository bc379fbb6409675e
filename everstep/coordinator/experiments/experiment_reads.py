"""What people look at when they open an experiment: trials as columns, curves, rungs, slots over time, and code.

Answers that are long are made in a thread: no heartbeat waits for them."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from everstep import wire
from everstep.coordinator.experiments.experiments import Experiments
from everstep.coordinator.experiments.facts import DELETED, Experiment, Trial
from everstep.coordinator.experiments.live import LiveExperiment
from everstep.coordinator.experiments.slot_use import slot_use
from everstep.coordinator.experiments.trial_columns import searched_hyperparameters, trial_columns
from everstep.coordinator.experiments.trial_curves import CurveBook, curves_view
from everstep.coordinator.store.experiment_rows import read_events, read_trials, read_use
from everstep.errors import UNKNOWN, EverstepError, Refused
from everstep.search.config import is_smaller_better, read_searcher
from everstep.search.explained_rungs import ExplainedCohort
from everstep.storage.code_listing import list_files, read_text
from everstep.wire.page_bounds import MOST_CODE_FILES, MOST_TEXT_BYTES

T = TypeVar("T")

_MOST_KEPT = 8  # rungs of experiments that are over
_IN_THREAD = 500  # trials, from which on an answer is made in a thread


class ExperimentReads:
    def __init__(self, experiments: Experiments) -> None:
        self._experiments, self._reader = experiments, experiments.reader
        self._curves = CurveBook(experiments.reader)
        self._rungs: OrderedDict[int, list[ExplainedCohort]] = OrderedDict()  # of those that are over

    async def columns(self, number: int) -> bytes:
        facts, trials, last_event = await self._trials(number)
        searched = await self._searched(facts, trials)

        def made() -> bytes:
            holder = self._experiments.holder
            return wire.to_json(trial_columns(facts, trials, holder, searched, last_event=last_event))

        return await asyncio.to_thread(made) if len(trials) > _IN_THREAD else made()

    async def curves(self, number: int, most_points: int, only: Sequence[int]) -> bytes:
        facts = await self._known(number)
        curves, last_event = await self._curves.read(number)
        smaller_is_better = is_smaller_better(facts.spec.searcher)

        def made() -> bytes:
            return wire.to_json(
                curves_view(
                    number,
                    curves,
                    last_event=last_event,
                    most_points=most_points,
                    only=set(only),
                    smaller_is_better=smaller_is_better,
                )
            )

        return await asyncio.to_thread(made) if len(curves) > _IN_THREAD else made()

    async def rungs(self, number: int) -> wire.Rungs:
        facts = await self._known(number)
        if live := self._experiments.live.get(number):
            cohorts, last_event = live.search.explain(), live.last_event
        else:
            cohorts, last_event = await self._explained(facts), int(facts.summary.get("last_event", 0))
        config = read_searcher(facts.spec.searcher)
        return wire.Rungs(
            experiment=number,
            last_event=last_event,
            order=config.order,
            metric=config.metric,
            smaller_is_better=config.smaller_is_better,
            unit=config.unit,
            divisor=float(config.divisor),
            cohorts=[_cohort_view(each) for each in cohorts],
        )

    async def _explained(self, facts: Experiment) -> list[ExplainedCohort]:
        """Of an experiment that is over: its search, folded again."""
        number = facts.number
        if number not in self._rungs:
            events = await self._reader.read(lambda connection: read_events(connection, number, 0))

            def explain() -> list[ExplainedCohort]:
                live = LiveExperiment(facts)
                for each in events:
                    live.follow(each.event)
                return live.search.explain()

            self._rungs[number] = await asyncio.to_thread(explain)
            while len(self._rungs) > _MOST_KEPT:
                self._rungs.popitem(last=False)
        return self._rungs[number]

    async def use(self, number: int) -> wire.ExperimentUse:
        await self._known(number)
        held = await self._reader.read(lambda connection: read_use(connection, number))
        return slot_use(held, time.time())

    async def code_files(self, number: int, path: Path | None, digest: str) -> wire.CodeFileList:
        """`path`: of the code's tarball; None: the experiment has no code."""
        if path is None:
            return wire.CodeFileList(code="", files=[])
        found, num_left_out = await _looked_into(path, lambda there: list_files(there, MOST_CODE_FILES))
        files = [
            wire.CodeFile(name=each.name, num_bytes=each.num_bytes, kind="link" if each.is_link else "file")
            for each in found
        ]
        return wire.CodeFileList(code=digest, files=files, num_left_out=num_left_out)

    async def code_text(self, path: Path | None, name: str) -> wire.CodeText:
        if path is None:
            raise Refused("the experiment has no code", status=UNKNOWN, code="code-unknown")
        text, num_bytes = await _looked_into(path, lambda there: read_text(there, name, MOST_TEXT_BYTES))
        return wire.CodeText(name=name, num_bytes=num_bytes, text=text, is_cut=num_bytes > MOST_TEXT_BYTES)

    async def code_of(self, number: int) -> str:
        """The SHA-256 of its code; "": it has none."""
        return str((await self._known(number)).spec.order.get("code") or "")

    async def _trials(self, number: int) -> tuple[Experiment, list[Trial], int]:
        """In the order of their numbers, and the last event of the search."""
        facts = await self._known(number)
        if live := self._experiments.live.get(number):
            return facts, [trial for _, trial in sorted(live.trials.items())], live.last_event
        rows = await self._reader.read(lambda connection: read_trials(connection, number))
        return facts, sorted(rows, key=lambda each: each.number), int(facts.summary.get("last_event", 0))

    async def _searched(self, facts: Experiment, trials: Sequence[Trial]) -> list[wire.SearchedHyperparameter]:
        return await asyncio.to_thread(searched_hyperparameters, facts.spec, trials)

    async def _known(self, number: int) -> Experiment:
        facts = await self._experiments.facts(number)
        if facts.state == DELETED:
            raise Refused(f"experiment {number} was deleted", status=UNKNOWN, code="experiment-unknown")
        return facts


async def _looked_into(path: Path, look: Callable[[Path], T]) -> T:
    try:
        return await asyncio.to_thread(look, path)
    except FileNotFoundError:
        text = "the code is no longer in the coordinator's folder"
        raise Refused(text, status=UNKNOWN, code="code-unknown") from None
    except EverstepError as error:
        raise Refused(error.message, status=422, code=error.code) from None


def _cohort_view(cohort: ExplainedCohort) -> wire.CohortView:
    return wire.CohortView(
        bracket=cohort.bracket,
        cohort=cohort.cohort,
        num_trials=cohort.num_trials,
        rungs=[
            wire.RungView(
                length=each.length,
                quota=each.quota,
                is_decided=each.is_decided,
                trials=[member.trial for member in each.members],
                metrics=[member.metric for member in each.members],
                outcomes=[member.outcome for member in each.members],
                places=[member.place for member in each.members],
                compared=[member.compared for member in each.members],
            )
            for each in cohort.rungs
        ],
    )
