"""Look for log policies and for patterns of webhooks in what trials print, once it is stored.

How far a log was searched is stored with what follows from it, in one transaction: a coordinator that is killed between
any two lines searches the rest again, and finds nothing twice. One thread searches, in a process that is killed if an
expression takes too long; this expression is then given up, and the trial says so. Before the end of a trial's process
is acted on, its log has been searched, unless that takes too long."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import math
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from sqlalchemy import Connection, Engine

from everstep import wire
from everstep.coordinator.experiments.experiments import Experiments
from everstep.coordinator.experiments.facts import Experiment, Trial
from everstep.coordinator.experiments.live import LiveExperiment
from everstep.coordinator.experiments.log_policies import (
    MatchedLine,
    given_up,
    noted,
    policies_of,
    wanted_patterns,
)
from everstep.coordinator.experiments.trial_calls import trial_key
from everstep.coordinator.regex_process import RegexProcess
from everstep.coordinator.store.experiment_rows import read_ended_jobs, read_trial
from everstep.coordinator.store.log_blocks import Searched, search_after
from everstep.coordinator.store.store import Store
from everstep.coordinator.store.webhook_rows import LogScan, add_deliveries, read_log_scan, write_log_scan
from everstep.coordinator.vital_tasks import die_if_failed
from everstep.coordinator.webhooks.facts import Delivery, Webhook
from everstep.coordinator.webhooks.triggers import is_wanted, log_delivery
from everstep.errors import Refused, TemporaryError
from everstep.record.log_search import Search
from everstep.wire.pool import agent_of
from everstep.wire.webhooks import GIVEN_UP

log = logging.getLogger(__name__)

SAVE_S = 10.0  # at least this long between two writes that only say how far a log was searched
AGAIN_S = 0.5  # after a failure
TRIES = 2  # of an expression that takes too long
LONGEST_CATCH_UP_S = 5.0
ENDED_S = 86_400.0  # at the start, logs of trials that ended in this time are searched, too


@dataclass(frozen=True, slots=True)
class _WatchedTrial:
    """A trial, and what its log is searched for."""

    live: LiveExperiment | None  # None: its experiment is over
    facts: Experiment
    trial: Trial
    policies: Sequence[wire.LogPolicy]
    webhooks: Sequence[Webhook]

    @property
    def digest(self) -> str:
        """A new pattern is also searched for in what is there already."""
        told = [
            [each.pattern for each in self.policies],
            [[each.request, *each.log_patterns] for each in self.webhooks],
        ]
        return hashlib.sha256(json.dumps(told).encode()).hexdigest()


class LogWatch:
    def __init__(self, store: Store, engine: Engine, experiments: Experiments) -> None:
        """`engine`: of the log's store."""
        self._store, self._engine, self._experiments = store, engine, experiments
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="log watch")
        self._regexes = RegexProcess()
        self._asked: set[str] = set()
        self._running: dict[str, asyncio.Task[None]] = {}
        self._scans: dict[str, tuple[LogScan, float]] = {}  # by job, and when it was written
        self._sent: set[str] = set()  # deliveries of this process, so that a pattern is not searched for again
        self._opening: asyncio.Task[None] | None = None
        self._problems: dict[str, str] = {}  # of patterns that take too long

    def look_at_all(self) -> None:
        """All trials that are not over: at the start, and when a webhook brings new patterns."""
        for live in self._experiments.live.values():
            for trial in live.trials.values():
                if trial.started_at is not None and not trial.is_over:
                    self.note_lines(trial.job)

    def open(self) -> None:
        self.look_at_all()
        self._opening = asyncio.create_task(self._look_at_ended())
        self._opening.add_done_callback(die_if_failed)

    async def _look_at_ended(self) -> None:
        """A coordinator that was killed may not have searched the last lines of trials that are over."""
        if any(each.log_patterns for each in self._experiments.webhooks.webhooks):
            since = time.time() - ENDED_S
            for job in await self._experiments.reader.read(lambda connection: read_ended_jobs(connection, since)):
                await self.catch_up(job)  # one after the other: there may be thousands

    def note_lines(self, job: str) -> None:
        """The job has printed something, which is stored now."""
        if trial_key(job) is None:
            return
        self._asked.add(job)
        if job not in self._running:
            task = asyncio.create_task(self._run(job))
            task.add_done_callback(die_if_failed)
            self._running[job] = task

    async def catch_up(self, job: str) -> None:
        """Return when all that is stored now has been searched, or when that takes too long."""
        self.note_lines(job)
        _, late = await asyncio.wait([self._running[job]], timeout=LONGEST_CATCH_UP_S)
        if late:
            log.warning("%s: searching its log takes more than %.0f s", job, LONGEST_CATCH_UP_S)

    async def close(self) -> None:
        tasks = [*self._running.values(), *([self._opening] if self._opening is not None else [])]
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.to_thread(self._thread.shutdown)
        self._regexes.close()

    async def _run(self, job: str) -> None:
        try:
            while job in self._asked:
                self._asked.discard(job)
                try:
                    await self._search(job)
                except TemporaryError as error:  # the store, or a busy machine
                    log.warning("%s: %s", job, error)
                    await asyncio.sleep(AGAIN_S)
                    self._asked.add(job)
        finally:
            del self._running[job]

    async def _search(self, job: str) -> None:
        is_end = False
        while not is_end:
            watched = await self._watched(job)
            if watched is None:
                return
            scan = await self._scan(job, watched.digest)
            wanted = self._wanted(watched)
            patterns = [each for each in wanted if each not in self._problems]
            call = partial(search_after, self._engine, job, scan.number, patterns, self._searching)
            found = await asyncio.get_running_loop().run_in_executor(self._thread, call)
            self._problems |= found.problems
            found.problems = {each: self._problems[each] for each in wanted if each in self._problems}
            await self._keep(watched, replace(scan, number=found.number), found)
            is_end = found.is_end
        if watched is not None and watched.trial.is_over:
            self._scans.pop(job, None)

    def _searching(self, pattern: str) -> Search:
        def search(text: bytes) -> Iterable[int]:
            for _ in range(TRIES - 1):
                with suppress(Refused):  # the machine may have been busy
                    return self._regexes.searching(pattern)(text)
            return self._regexes.searching(pattern)(text)

        return search

    async def _watched(self, job: str) -> _WatchedTrial | None:
        """None: nothing is searched for."""
        number, trial_number = trial_key(job) or (0, 0)
        live = await self._experiments.find(number)
        try:
            facts = live.facts if live is not None else await self._experiments.facts(number)
        except Refused:  # it was deleted
            return None
        trial = live.trials.get(trial_number) if live is not None else None
        if trial is None:
            trial = await self._experiments.reader.read(lambda it: read_trial(it, number, trial_number))
        if trial is None:
            return None
        ended_at = math.inf if trial.ended_at is None else trial.ended_at
        webhooks = [
            each
            for each in self._experiments.webhooks.webhooks
            if each.log_patterns and each.created_at < ended_at and is_wanted(each, facts)
        ]
        policies = policies_of(facts.spec) if live is not None else []
        if not (webhooks or policies):
            return None
        return _WatchedTrial(live, facts, trial, policies, webhooks)

    def _wanted(self, watched: _WatchedTrial) -> list[str]:
        """Patterns that are not known to match already."""
        wanted = wanted_patterns(watched.trial, watched.policies)
        for webhook in watched.webhooks:
            wanted += [
                each for each in webhook.log_patterns if self._delivery(watched, webhook, each).uuid not in self._sent
            ]
        return list(dict.fromkeys(wanted))

    async def _scan(self, job: str, digest: str) -> LogScan:
        known = self._scans.get(job)
        if known is None:
            read = await self._experiments.reader.read(lambda connection: read_log_scan(connection, job))
            known = (read or LogScan(job=job, number=0, patterns=digest), 0.0)
            self._scans[job] = known
        return known[0] if known[0].patterns == digest else LogScan(job=job, number=0, patterns=digest)

    async def _keep(self, watched: _WatchedTrial, scan: LogScan, found: Searched) -> None:
        """Write the matches and the position of the search in one transaction."""
        deliveries = list(self._deliveries(watched, found))
        live, is_kept = watched.live, False
        if live is not None and (found.lines or found.problems):
            async with live.lock:
                before = live.trials[watched.trial.number]
                after = _after(before, watched.policies, found)
                if after is not before or deliveries:
                    changed = [after] if after is not before else []
                    await self._experiments.commit(live, changed=changed, deliveries=deliveries, log_scan=scan)
                    is_kept = True
        written_at = self._scans[scan.job][1]
        is_due = deliveries or time.monotonic() - written_at >= SAVE_S
        if not is_kept and is_due and scan.number:
            await self._store.write(partial(_write, deliveries=deliveries, scan=scan))
            is_kept = True
        if deliveries:
            self._experiments.ring_outbox()
            self._sent |= {each.uuid for each in deliveries}
        self._scans[scan.job] = (scan, time.monotonic() if is_kept else written_at)

    def _deliveries(self, watched: _WatchedTrial, found: Searched) -> Sequence[Delivery]:
        made: dict[str, Delivery] = {}
        for webhook in watched.webhooks:
            for each in found.lines:
                if each.pattern in webhook.log_patterns:
                    new = self._delivery(watched, webhook, each.pattern, each)
                    made.setdefault(new.uuid, new)
            for pattern, problem in found.problems.items():
                if pattern in webhook.log_patterns:
                    new = self._delivery(watched, webhook, pattern)
                    new = replace(new, state=GIVEN_UP, reason=problem, ended_at=new.created_at)
                    made.setdefault(new.uuid, new)
        return list(made.values())

    def _delivery(
        self, watched: _WatchedTrial, webhook: Webhook, pattern: str, line: MatchedLine | None = None
    ) -> Delivery:
        told = {"node": "", "worker": "", "line": ""}
        if line is not None:
            told = {"node": agent_of(line.node), "worker": line.worker, "line": line.line}
        return log_delivery(webhook, watched.facts, watched.trial, pattern, told, time.time())


def _after(trial: Trial, policies: Sequence[wire.LogPolicy], found: Searched) -> Trial:
    lines = [replace(each, node=agent_of(each.node)) for each in found.lines]
    trial = noted(trial, policies, lines)
    for pattern, problem in found.problems.items():
        trial = given_up(trial, policies, pattern, problem)
    return trial


def _write(connection: Connection, *, deliveries: Sequence[Delivery], scan: LogScan) -> None:
    add_deliveries(connection, deliveries)
    write_log_scan(connection, scan)
