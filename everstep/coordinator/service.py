"""All jobs of a coordinator: found in memory, else read from the store, else unknown."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from everstep import wire
from everstep.coordinator.clock import Clock
from everstep.coordinator.experiment_feed import EXPERIMENTS, POOLS, QUEUES, ExperimentFeed
from everstep.coordinator.experiments.checkpoint_records import CheckpointRecords
from everstep.coordinator.experiments.experiment_calls import ExperimentCalls
from everstep.coordinator.experiments.experiment_listing import ExperimentListing
from everstep.coordinator.experiments.experiment_reads import ExperimentReads
from everstep.coordinator.experiments.experiments import Experiments
from everstep.coordinator.experiments.trial_calls import TrialCalls, trial_key
from everstep.coordinator.experiments.trial_jobs import TrialJobs
from everstep.coordinator.feed import JobFeed
from everstep.coordinator.job import CoordinatedJob
from everstep.coordinator.job_band import JobBand
from everstep.coordinator.job_listing import JobListing
from everstep.coordinator.job_logs import JobLogs
from everstep.coordinator.log_watch import LogWatch
from everstep.coordinator.metrics import Metrics
from everstep.coordinator.models.checkpoint_changes import CheckpointChanges
from everstep.coordinator.models.model_calls import ModelCalls
from everstep.coordinator.pool.nodes_reports import NodesReports
from everstep.coordinator.pool.people import NOBODY, People
from everstep.coordinator.pool.pool import Pool
from everstep.coordinator.pool.queue_view import queue_view, with_owners
from everstep.coordinator.pool.use import PoolUses
from everstep.coordinator.prometheus_text import Histogram
from everstep.coordinator.retention import DAYS, JobRetention
from everstep.coordinator.roster.facts import ID, Roster
from everstep.coordinator.roster.marks import FORMED
from everstep.coordinator.roster.replies import generation_view
from everstep.coordinator.shards.ledger import Rows
from everstep.coordinator.spans.sender import SpanSender
from everstep.coordinator.store.log_store import LogStore
from everstep.coordinator.store.store import Store, restored
from everstep.coordinator.store.store_reader import StoreReader
from everstep.coordinator.stream import SLASH, LiveStream, is_job
from everstep.coordinator.templates import Templates
from everstep.coordinator.turns import Turns
from everstep.coordinator.vital_tasks import die_if_failed
from everstep.coordinator.webhooks.alerts import Alerts
from everstep.coordinator.webhooks.book import WebhookBook
from everstep.coordinator.webhooks.hosts import NO_HOSTS, AllowedHosts
from everstep.coordinator.webhooks.outbox import Outbox
from everstep.coordinator.webhooks.post import Poster
from everstep.coordinator.webhooks.webhook_calls import WebhookCalls
from everstep.errors import UNKNOWN, Refused
from everstep.record.store import MetricStore
from everstep.record.writing import SeriesNews
from everstep.retry import LONGEST_PAUSE_S
from everstep.wire.limits import check_jobs


class Service:
    def __init__(
        self,
        store: Store,
        clock: Clock | None = None,
        turns: Turns | None = None,
        *,
        keep_days: float = DAYS,
        people: People = NOBODY,
        span_exporter: object | None = None,
        webhook_hosts: AllowedHosts = NO_HOSTS,
    ) -> None:
        """`span_exporter`: OpenTelemetry's; None: no spans are made."""
        self._store, self._turns = store, turns or Turns()
        self._jobs: dict[str, CoordinatedJob] = {}
        self.stream = LiveStream(store.epoch)
        self.feed = JobFeed(self.stream, self._jobs.get, lambda: [job.summary() for job in self._jobs.values()])
        self.logs = JobLogs(LogStore(store.url, store.epoch), self._turns, self._note_lines)
        self._loop = asyncio.get_running_loop()
        self.metrics = Metrics(MetricStore(store.url, store.epoch, on_news=self._note_points))
        self._reader = StoreReader(store)
        self.listing = JobListing(self._reader, self._jobs, self.metrics)
        self._over: set[str] = set()  # at the last look
        self.num_regroups = 0  # since the start
        self.retention = JobRetention(
            store,
            self.metrics,
            self.logs,
            forget=self._forget,
            drop=self._drop,
            remove=self._remove,
            days=keep_days,
        )
        self._opening = asyncio.Lock()
        self._clock = clock or Clock(heard_until=self._turns.heard_until)
        self.pool_nodes = NodesReports(now=self._clock.now)
        most_slots = self.pool_nodes.most_slots
        self.pool = Pool(store, now=self._clock.now, turns=self._turns, people=people, most_slots=most_slots)
        # Searches have limits of their own; a trial that gets no job would keep all others waiting.
        trial_jobs = TrialJobs(partial(self.create, is_limited=False), self.job, self._jobs.get, self.retention.remove)
        book = WebhookBook(store)
        self.outbox = Outbox(store, self._reader, book, Poster(webhook_hosts))
        self.experiments = Experiments(
            store, self._reader, trial_jobs, self._turns, self._clock.now, webhooks=book, ring_outbox=self.outbox.ring
        )
        self.log_watch = LogWatch(store, self.logs.engine, self.experiments)
        self.experiments.search_log = self.log_watch.catch_up
        self.webhooks = WebhookCalls(
            book, self.outbox, self.experiments, self._reader, webhook_hosts, self.log_watch.look_at_all
        )
        self.trials = TrialCalls(self.experiments, Alerts(store, book, self.outbox.ring))
        self.checkpoints = CheckpointRecords(store, self.experiments)
        self.experiment_calls = ExperimentCalls(store, self.experiments, self.checkpoints)
        self.experiment_listing = ExperimentListing(self.experiments, self.metrics)
        self.experiment_reads = ExperimentReads(self.experiments)
        self.experiment_feed = ExperimentFeed(
            self.stream, self.experiments, held=self.pool.held, pool_view=self.pool_view, queue_view=self.queue_view
        )
        self.experiments.on_change.append(self.experiment_feed.note_changed)
        self.experiment_calls.on_view = self.experiment_feed.note_view
        self.feed.tellers.append(self.experiment_feed.tell)
        self.models = ModelCalls(store, self.experiments, self.checkpoints, self._is_over)
        self.checkpoint_changes = CheckpointChanges(store, self.experiments, self.checkpoints, self._is_over)
        self.templates = Templates(store, self._reader)
        self.uses = PoolUses(self._reader)
        self.spans = SpanSender(store, self._reader, span_exporter) if span_exporter is not None else None
        if self.spans is not None:
            self.experiments.on_change.append(self.spans.note_experiment)
            self.checkpoints.on_report = self.spans.note
        self._ticking = asyncio.create_task(self._clock.tick())
        self._ticking.add_done_callback(die_if_failed)

    async def start(self) -> None:
        """Continue what the store holds."""
        await self.experiments.webhooks.load()
        await self.pool.load()
        await self.experiments.start(self.pool)
        self.log_watch.open()
        self.pool.open(self.experiments)
        self.outbox.open()

    def _note_lines(self, job: str, num_lines: int) -> None:
        self.feed.note_lines(job, num_lines)
        self.log_watch.note_lines(job)

    def _note_marks(self, job: str, marks: Sequence[wire.Mark]) -> None:
        self.num_regroups += sum(each.kind == FORMED and each.generation > 1 for each in marks)
        self.feed.note_marks(job, marks)
        if self.spans is not None:
            self.spans.note(job)
        if marks and trial_key(job) is not None:  # it may use other slots now
            self.pool.note_change()

    def _note_points(self, news: list[SeriesNews]) -> None:
        """Called by the thread that keeps metrics."""
        if self.stream.has_topics.is_set() and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.feed.note_points, news)

    @property
    def num_jobs(self) -> int:
        return len(self._jobs)

    @property
    def store_latency(self) -> Histogram:
        return self._store.latency

    def let_go(self) -> None:
        """Answer the calls that are held: this process is about to end."""
        self.stream.close()
        self.logs.let_go()
        self.pool.let_go()
        self.experiments.let_go()
        for job in self._jobs.values():
            job.let_go()

    async def close(self) -> None:
        self._ticking.cancel()
        self.feed.close()
        await self.pool.close()
        await self.log_watch.close()
        await self.experiments.close()
        await self.outbox.close()
        await self.retention.close()
        await asyncio.gather(*(job.close() for job in self._jobs.values()))
        await self.logs.close()
        await self.metrics.close()
        if self.spans is not None:
            await self.spans.close()
        self._reader.close()
        self._store.close()

    def job_at_hand(self, name: str) -> CoordinatedJob | None:
        return self._jobs.get(name)

    async def job(self, name: str) -> CoordinatedJob:
        if found := self._jobs.get(name) or await self._load(name):
            return found
        raise Refused(f"there is no job {name}", status=UNKNOWN, code="job-unknown")

    async def knows(self, name: str) -> bool:
        """Whether there is a job of this name, or another topic of the stream."""
        if is_job(name):
            return name in self._jobs or await self._load(name) is not None
        kind, _, rest = name.partition(SLASH)
        if f"{kind}/" in (POOLS, QUEUES):
            return rest in self.pool.names
        return name == EXPERIMENTS or (f"{kind}/" == EXPERIMENTS and self.experiments.knows(rest))

    def pool_view(self, pool: str) -> wire.PoolView:
        owners = {number: live.facts.owner for number, live in self.experiments.live.items()}
        return with_owners(self.pool_nodes.added_to(self.pool.view(pool)), owners)

    def queue_view(self, pool: str) -> wire.QueueView:
        live = [each.facts for each in self.experiments.live.values()]
        return queue_view(pool, live, self.pool.standing(pool))

    async def _is_over(self, name: str) -> bool:
        """Whether nothing trains the job any more: a trial that is not over may continue later."""
        key = trial_key(name)
        live = None if key is None else await self.experiments.find(key[0])
        if key is not None:
            return live is None or key[1] not in live.trials or live.trials[key[1]].is_over
        job = self._jobs.get(name) or await self._load(name)
        return job is None or job.kept.is_over  # None: it was removed after its days

    async def create(self, name: str, spec: wire.JobSpec, *, is_limited: bool = True) -> CoordinatedJob:
        if not ID.fullmatch(name):
            raise Refused(
                "a job's id is up to 128 letters, digits, dots, dashes and underscores",
                status=422,
                code="job-name-invalid",
            )
        if found := self._jobs.get(name) or await self._load(name):
            return found
        async with self._opening:
            if name not in self._jobs:
                if is_limited:
                    check_jobs(sum(not job.kept.is_over for job in self._jobs.values()))
                roster = Roster(job=name, name=spec.name, policy=spec.policy, config=spec.config)
                band = JobBand()
                marks = band.begin()
                await self._store.in_thread(lambda: self._store.save(None, roster, marks))
                band.keep(marks)
                self._jobs[name] = self._make(roster, band)
        return self._jobs[name]

    async def compare(self, names: Sequence[str]) -> wire.JobComparison:
        found, unknown = [], []
        for name in names:
            if job := self._jobs.get(name) or await self._load(name):
                found.append(await self.listing.compared(job))
            else:
                unknown.append(name)
        return wire.JobComparison(jobs=found, unknown=unknown)

    async def generation(self, name: str, number: int) -> wire.GenerationView:
        latest = (await self.job(name)).kept.generation
        found = latest if number == latest.number else None
        if 0 < number < latest.number:
            found = await self._reader.generation(name, number)
        if found is None or number == 0:
            raise Refused(f"job {name} has no generation {number}", status=UNKNOWN, code="generation-unknown")
        return generation_view(found)

    async def _forget(self) -> None:
        """Jobs that nothing is left to be done for, since the look before this one."""
        idle = {name for name, job in self._jobs.items() if job.is_done}
        for name in idle & self._over:
            await self._drop(name)
        self._over = idle - self._over

    async def _drop(self, name: str) -> None:
        async with self._opening:  # a call for it waits, and then reads what was kept
            if (job := self._jobs.pop(name, None)) is not None:
                self.listing.keep(job.summary())
                await job.close()

    async def _remove(self, name: str) -> None:
        """From the store, for good, and from the memory: a call may have read it again since it was dropped."""
        async with self._opening:
            if (job := self._jobs.pop(name, None)) is not None:
                await job.close()
            await self._store.in_thread(lambda: self._store.drop(name))
            self.listing.forget(name)
        self.feed.note_removed(name)

    async def _load(self, name: str) -> CoordinatedJob | None:
        async with self._opening:
            if name in self._jobs:
                return self._jobs[name]
            roster = await self._store.in_thread(lambda: self._store.load(name)) if ID.fullmatch(name) else None
            if roster is None:
                return None
            # Clients pause this long between two tries: their time counts from when they can have reached us.
            grace_s = LONGEST_PAUSE_S + roster.policy.lease_s
            roster = restored(roster, self._clock.now(), grace_s)
            ledgers = await self._store.in_thread(lambda: self._store.load_ledgers(name))
            band = JobBand(*await self._store.in_thread(lambda: self._store.past(name)))
            job = self._make(roster, band, ledgers, grace_s=LONGEST_PAUSE_S)
            self._jobs[name] = job
            return job

    def _make(
        self, roster: Roster, band: JobBand, ledgers: Sequence[Rows] = (), *, grace_s: float = 0.0
    ) -> CoordinatedJob:
        clock = self._clock
        return CoordinatedJob(
            roster,
            self._store,
            ledgers,
            grace_s=grace_s,
            now=clock.now,
            was_away=clock.was_away,
            turns=self._turns,
            band=band,
            on_marks=self._note_marks,
        )
