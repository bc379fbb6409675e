"""Find the spans that are new, and hand them over to be sent.

Code that changes something notes its subject, which costs next to nothing. A round reads the subjects that were noted
from the store, by its reader's thread, and makes their spans; those that were sent before are left out. The store
keeps which spans were sent, once the collector has them: after a restart, little is sent again, and always with the
same IDs. Nothing here can end the coordinator, or make it wait."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection

from everstep.coordinator.experiments.facts import Trial
from everstep.coordinator.experiments.live import LiveExperiment
from everstep.coordinator.experiments.trial_calls import trial_key
from everstep.coordinator.spans.export import SpanExport
from everstep.coordinator.spans.span import TraceSpan
from everstep.coordinator.spans.subjects import (
    SentSpans,
    SubjectSpans,
    experiment_of,
    experiment_subject,
    read_marks,
    read_sent,
    read_spans,
    read_unfinished,
    write_sent,
)
from everstep.coordinator.store.experiment_rows import EventRow, read_events
from everstep.coordinator.store.store import Store
from everstep.coordinator.store.store_reader import StoreReader
from everstep.search.events import Validated
from everstep.storage.database import StoreError
from everstep.wire import Mark, trial_job

log = logging.getLogger(__name__)

ROUND_S = 1.0
LATE_S = 5.0  # facts may be kept this long after others of a later time
_MOST_EVENTS = 10_000  # of a search, in one round
_MOST_SUBJECTS = 200  # in one round


class SpanSender:
    def __init__(self, store: Store, reader: StoreReader, exporter: object) -> None:
        self._store, self._reader = store, reader
        self._loop = asyncio.get_running_loop()
        self._export = SpanExport(exporter, self._on_sent)
        self._noted: dict[str, None] = {}  # in the order of noting
        self._has_notes = asyncio.Event()
        self._found: dict[str, set[int]] = defaultdict(set)  # by subject: spans that were handed over
        self._begins: dict[str, SentSpans] = {}  # by subject: what an earlier process has sent
        self._over: set[str] = set()
        self._has_begun = False
        self._marks: dict[str, list[Mark]] = defaultdict(list)  # by job
        self._results: dict[str, list[EventRow]] = defaultdict(list)  # by the trial's job
        self._last_event: dict[int, int] = {}  # by experiment
        self._sent: dict[str, float] = {}  # to be kept, like …
        self._new: list[str] = []  # … subjects of which nothing is kept yet
        self._num_waiting: Counter[str] = Counter()  # by subject: spans that are not sent yet
        self._task = asyncio.create_task(self._run())

    def note(self, subject: str) -> None:
        if subject not in self._over:
            self._noted[subject] = None
            self._has_notes.set()

    def note_experiment(self, live: LiveExperiment, trials: Iterable[Trial], _event: Mapping[str, Any] | None) -> None:
        """It has changed, and these of its trials."""
        for subject in (*(trial.job for trial in trials), experiment_subject(live.number)):
            self.note(subject)

    @property
    def num_dropped(self) -> int:
        return self._export.num_dropped

    async def close(self) -> None:
        """One more round, and what the collector takes at once."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._round_or_later()
        await asyncio.to_thread(self._export.close)
        await asyncio.sleep(0)  # what the thread has said
        await self._keep_sent()

    def _on_sent(self, spans: Sequence[TraceSpan]) -> None:
        """By the thread that sends."""
        with contextlib.suppress(RuntimeError):  # the loop was closed: the coordinator has ended
            self._loop.call_soon_threadsafe(self._note_sent, spans)

    def _note_sent(self, spans: Sequence[TraceSpan]) -> None:
        for each in spans:
            self._num_waiting[each.subject] -= 1
            self._sent[each.subject] = max(each.end, self._sent.get(each.subject, 0.0))
        self._has_notes.set()

    async def _run(self) -> None:
        self._has_notes.set()
        while True:
            await self._has_notes.wait()
            self._has_notes.clear()
            await self._round_or_later()
            await asyncio.sleep(ROUND_S)

    async def _round_or_later(self) -> None:
        try:
            await self._round()
            await self._keep_sent()
        except StoreError as error:  # noted subjects stay noted
            log.debug("spans wait for the store: %s", error)
            self._has_notes.set()
        except Exception:  # of spans alone: training continues without them
            log.exception("no spans for %d experiments and jobs", len(self._noted))
            self._noted.clear()

    async def _round(self) -> None:
        if not self._has_begun:
            for subject in await self._reader.read(read_unfinished):
                self.note(subject)
            self._has_begun = True
        while self._noted:
            some = list(self._noted)[:_MOST_SUBJECTS]
            found = await self._reader.read(lambda connection, some=some: self._read(connection, some))  # type: ignore[misc]
            for subject in some:
                self._noted.pop(subject, None)
            for subject, spans in found.items():
                self._hand_over(subject, spans)

    def _read(self, connection: Connection, subjects: Sequence[str]) -> dict[str, SubjectSpans]:
        """By the reader's thread."""
        for number in {key[0] for subject in subjects if (key := trial_key(subject))}:
            self._read_results(connection, number)
        found = {}
        for subject in subjects:
            if subject not in self._begins:
                sent = read_sent(connection, subject)
                self._begins[subject] = sent or SentSpans(until=0.0, is_over=False)
                self._new += [subject] if sent is None else []
            if self._begins[subject].is_over:
                continue
            marks = self._marks[subject]
            marks += read_marks(connection, subject, marks[-1].number if marks else 0)
            found[subject] = read_spans(connection, self._store.identity, subject, marks, self._results[subject])
        return found

    def _read_results(self, connection: Connection, number: int) -> None:
        while events := read_events(connection, number, self._last_event.get(number, 0), _MOST_EVENTS):
            for each in events:
                if each.event["kind"] == Validated.kind:
                    self._results[trial_job(number, each.event["trial"])].append(each)
            self._last_event[number] = events[-1].number

    def _hand_over(self, subject: str, found: SubjectSpans) -> None:
        known, begins_at = self._found[subject], self._begins[subject].until - LATE_S
        for span in found.spans:
            if span.id not in known and span.end > begins_at:
                self._num_waiting[subject] += self._export.offer(span)
            known.add(span.id)
        if found.is_over:
            self._over.add(subject)
            self._sent.setdefault(subject, self._begins[subject].until)
            self._found.pop(subject, None)
            self._marks.pop(subject, None)
            self._results.pop(subject, None)
            if (number := experiment_of(subject)) is not None:
                self._last_event.pop(number, None)

    async def _keep_sent(self) -> None:
        if not (self._sent or self._new):
            return
        new, sent = list(self._new), dict(self._sent)
        rows = {name: SentSpans(until=0.0, is_over=False) for name in new}
        for name, until in sent.items():
            is_over = name in self._over and not self._num_waiting[name]
            rows[name] = SentSpans(until=until, is_over=is_over)
        await self._store.write(lambda connection: write_sent(connection, rows))
        del self._new[: len(new)]
        for name, until in sent.items():
            is_done = rows[name].is_over or name not in self._over
            if is_done and self._sent[name] == until:  # nothing came meanwhile
                del self._sent[name]
