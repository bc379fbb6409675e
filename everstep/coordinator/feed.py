"""News of all jobs, gathered and sent a few times per second: increments only, and only what someone follows.

Those who change something note it here, which costs next to nothing. A tick makes one message per kind and topic of
what was noted, so readers get at most four per second, however much happens."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from everstep.coordinator.stream import LIST, MAX_MESSAGE_BYTES, LiveStream, is_job
from everstep.coordinator.vital_tasks import die_if_failed
from everstep.record.writing import SeriesNews
from everstep.wire import JobSummary, Mark, NodeView, WorkerView, to_json, to_value

if TYPE_CHECKING:
    from everstep.coordinator.job import CoordinatedJob

TICK_S = 0.25
TICKS_PER_LIST = 4  # the list of jobs need not be as quick
MOST_WORKERS = 200  # that are sent one by one
STEPS_S = 1.0  # between two looks at the steps of workers
MOST_POINTS = 20  # of a series in a message: more are thinned
POINT_BYTES_PER_S = 1 << 16  # of a job: more make its messages rarer
LONGEST_S = 1.0  # between two of them: series that do not fit into one take turns

_FRAME_BYTES = 1000  # of a message, without its series: the job's name and such


class JobFeed:
    def __init__(
        self,
        stream: LiveStream,
        find: Callable[[str], CoordinatedJob | None],
        all_jobs: Callable[[], Iterable[JobSummary]],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`find`: a job in memory. `all_jobs`: summaries of all jobs in memory."""
        self.stream, self._find, self._all_jobs, self._now = stream, find, all_jobs, now
        self._marks: dict[str, list[Mark]] = {}
        self._points: dict[str, dict[int, _NewPoints]] = {}
        self._points_due: dict[str, float] = {}  # job → when the next ones may be sent
        self._num_lines: Counter[str] = Counter()
        self._removed: list[str] = []
        self._told_list: dict[str, JobSummary] | None = None  # None: no one follows it
        self._told_jobs: dict[str, _ToldJob] = {}
        self.tellers: list[Callable[[bool], None]] = []  # of other topics; True: also what need not be as quick
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(die_if_failed)

    def close(self) -> None:
        self._task.cancel()

    def note_marks(self, job: str, marks: Sequence[Mark]) -> None:
        if marks and self.stream.is_followed(job):
            self._marks.setdefault(job, []).extend(marks)

    def note_points(self, news: Sequence[SeriesNews]) -> None:
        for each in news:
            if self.stream.is_followed(each.job):
                series = self._points.setdefault(each.job, {})
                if (found := series.get(each.series)) is None:
                    found = series[each.series] = _NewPoints(each.series, each.name)
                found.add(each)

    def note_lines(self, job: str, num_lines: int) -> None:
        if num_lines and self.stream.is_followed(job):
            self._num_lines[job] += num_lines

    def note_removed(self, job: str) -> None:
        if self.stream.is_followed(LIST):
            self._removed.append(job)

    async def _run(self) -> None:
        num_ticks = 0
        while True:
            await self.stream.has_topics.wait()
            self.tick(has_list=num_ticks % TICKS_PER_LIST == 0)
            num_ticks += 1
            await asyncio.sleep(TICK_S)

    def tick(self, *, has_list: bool = True) -> None:
        """Tell what was noted."""
        if has_list or self._told_list is None:
            self._tell_list()
        followed = [name for name in self.stream.topics() if name != LIST and is_job(name)]
        for job in followed:
            self._tell_job(job)
        self._told_jobs = {job: told for job, told in self._told_jobs.items() if job in followed}
        for job, marks in self._take(self._marks):
            self.stream.publish(job, "band", {"job": job, "marks": marks})
        self._tell_points()
        for job, num_lines in self._take(self._num_lines):
            self.stream.publish(job, "logs", {"job": job, "num_lines": num_lines})
        for tell in self.tellers:
            tell(has_list)
        self.stream.wake()

    def _tell_points(self) -> None:
        now = self._now()
        for job in [job for job in self._points if self._points_due.get(job, 0.0) <= now]:
            message = b'{"job":%s,"series":[%s]}' % (to_json(job), self._take_series(job))
            num_bytes = self.stream.publish(job, "points", message)
            self._points_due[job] = now + min(LONGEST_S, num_bytes / POINT_BYTES_PER_S)
        for job in [job for job, due in self._points_due.items() if due <= now]:
            del self._points_due[job]

    def _take_series(self, job: str) -> bytes:
        """Those that fit into a message, as JSON. The others stay and gather points: what comes later stands behind
        them."""
        waiting, room = self._points.pop(job), MAX_MESSAGE_BYTES - _FRAME_BYTES
        taken: list[bytes] = []
        for number, each in list(waiting.items()):
            encoded = to_json(each.view())
            room -= len(encoded) + 1
            if room < 0:
                break
            taken.append(encoded)
            del waiting[number]
        if waiting and self.stream.is_followed(job):
            self._points[job] = waiting
        return b",".join(taken)

    @staticmethod
    def _take(noted: dict[str, Any]) -> list[tuple[str, Any]]:
        found = list(noted.items())
        noted.clear()
        return found

    def _tell_list(self) -> None:
        if not self.stream.is_followed(LIST):
            self._told_list = None
            return
        now = {each.job: each for each in self._all_jobs()}
        told, self._told_list = self._told_list, now
        removed, self._removed = self._removed, []
        if told is None:
            return
        changed = [each for job, each in now.items() if told.get(job) is not each and told.get(job) != each]
        if changed or removed:
            self.stream.publish(LIST, "jobs", {"jobs": changed, "removed": removed})

    def _tell_job(self, name: str) -> None:
        job = self._find(name)
        if job is None:
            return
        told = self._told_jobs.get(name)
        now = self._told_jobs[name] = _ToldJob(job, told, self._now())
        # All of it at first: what a reader has loaded may be older than this.
        if change := now.whole() if told is None else now.since(told):
            self.stream.publish(name, "job", {"job": name, **change})


class _ToldJob:
    """What the readers of a job know of it."""

    def __init__(self, job: CoordinatedJob, before: _ToldJob | None, now: float) -> None:
        self.summary, self._roster, self._reason = job.summary(), job.kept, job.reason
        self._num_steps, self._made_at = job.signs.num_steps, now
        self.workers: Mapping[str, WorkerView] | None
        self.nodes: Sequence[NodeView]
        if before is not None and self._is_like(before):
            self.workers, self.nodes = before.workers, before.nodes
            self._num_steps, self._made_at = before._num_steps, before._made_at
            return
        are_many = len(self._roster.workers) > MOST_WORKERS
        view = job.view(is_brief=are_many)
        self.workers = None if are_many else {each.worker: each for each in view.workers}
        self.nodes = view.nodes

    def _is_like(self, before: _ToldJob) -> bool:
        """Workers report their steps very often; they are sent once per second."""
        if before._roster is not self._roster or before._reason != self._reason:
            return False
        is_soon = self._made_at < before._made_at + STEPS_S
        return before.workers is None or before._num_steps == self._num_steps or is_soon

    def whole(self) -> dict[str, Any]:
        workers = None if self.workers is None else [*self.workers.values()]
        return {"summary": self.summary, "workers": workers, "nodes": self.nodes}

    def since(self, before: _ToldJob) -> dict[str, Any] | None:
        is_same = self._roster is before._roster and self.workers is before.workers
        if is_same and self.summary == before.summary:
            return None
        workers: list[WorkerView] | None = None
        if self.workers is not None and before.workers is not None:
            known = before.workers
            workers = [each for name, each in self.workers.items() if each is not known.get(name)]
            workers = [each for each in workers if each != known.get(each.worker)]
        elif self.workers is None and self._roster is before._roster:
            workers = []
        nodes = self.nodes if self.nodes is not before.nodes and self.nodes != before.nodes else None
        return {"summary": self.summary, "workers": workers, "nodes": nodes}


class _NewPoints:
    """Of one series, since the last tick."""

    def __init__(self, series: int, name: str) -> None:
        self._series, self._name, self._count = series, name, 0
        self._cut: int | None = None
        self._points: dict[int, tuple[int, float, float]] = {}  # by step: step, time, value
        self._is_thinned = False

    def add(self, news: SeriesNews) -> None:
        self._count = news.num_points
        if news.cut is not None:
            self._cut = news.cut if self._cut is None else min(self._cut, news.cut)
            self._points = {step: point for step, point in self._points.items() if step < news.cut}
        self._take(news.points if len(news.points) <= MOST_POINTS else self._thinned(news.points))
        if len(self._points) > MOST_POINTS:
            points, self._points = list(self._points.values()), {}
            self._take(self._thinned(points))

    def _take(self, points: Iterable[tuple[int, float, float]]) -> None:
        self._points.update((point[0], point) for point in points)

    def _thinned(self, points: Sequence[tuple[int, float, float]]) -> set[tuple[int, float, float]]:
        """Keep what shows: the first, the last, and the extremes."""
        self._is_thinned = True
        finite = [point for point in points if math.isfinite(point[2])]
        extremes = {min(finite, key=itemgetter(2)), max(finite, key=itemgetter(2))} if finite else set()
        return {min(points), max(points)} | extremes  # the first and last step

    def view(self) -> dict[str, Any]:
        steps = sorted(self._points)
        return {
            "series": self._series,
            "name": self._name,
            "count": self._count,
            "cut": self._cut,
            "steps": steps,
            "times": [self._points[step][1] for step in steps],
            "values": [to_value(self._points[step][2]) for step in steps],
            "is_thinned": self._is_thinned,
        }
