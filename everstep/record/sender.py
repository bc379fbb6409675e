"""Send a worker's reports to the coordinator in the background, so that training never waits for it.

While the coordinator is unreachable, the newest reports are kept and sent later. Reports that were never accepted are
counted and logged at the end, as are points that a newer history has replaced."""

from __future__ import annotations

import contextlib
import logging
import math
import queue
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from everstep import env
from everstep.client.calls import Coordinator
from everstep.errors import Abandoned, EverstepError
from everstep.retry import patiently
from everstep.wire import MetricReport, MetricReports, MetricsKept

log = logging.getLogger(__name__)

MOST_WAITING = 10_000
MOST_AT_ONCE = 500
GATHER_S = 0.1  # after a call: a short trial has several reports in this time, which then share one call
CLOSE_S = 5.0


def open_sender() -> MetricSender | None:
    """To this job's coordinator; None outside a job."""
    url, token, worker, job = env.coordinator_url(), env.token(), env.worker(), env.job()
    if as_told := env.value(env.REPORT_AS):
        url, job, worker, file = as_told.split(" ", 3)
        token = env.read_token(Path(file))
    if not (url and token and worker):
        return None
    coordinator = Coordinator(url, token, job)
    return MetricSender(coordinator, partial(coordinator.report_metrics, worker))


class MetricSender:
    """Owns the coordinator's client, whose call is `send`. Call it with each report, and close it at the end."""

    def __init__(self, coordinator: Coordinator, send: Callable[[MetricReports], MetricsKept]) -> None:
        self._coordinator, self._call = coordinator, send
        self._waiting: queue.Queue[MetricReport | None] = queue.Queue()  # None, once closed
        self._is_closing, self._has_given_up = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._num_lost, self._why_lost = 0, ""
        self._num_outdated, self._why_outdated = 0, ""
        self._counting = threading.Lock()
        self._is_said = False

    def __call__(self, report: MetricReport) -> None:
        if self._waiting.qsize() >= MOST_WAITING:
            with contextlib.suppress(queue.Empty):  # all of them are under way by now
                self._waiting.get_nowait()
                self._note_lost(1, f"more than {MOST_WAITING} were waiting")
                self._waiting.task_done()
        self._waiting.put(report)
        if self._thread is None:
            self._thread = threading.Thread(target=self._send_all, name="job-metrics", daemon=True)
            self._thread.start()

    def close(self, deadline_s: float = CLOSE_S) -> None:
        """Send the rest, for at most `deadline_s`; then report what was lost."""
        self._is_closing.set()
        done = self._waiting.all_tasks_done
        with done:
            done.wait_for(lambda: not self._waiting.unfinished_tasks, deadline_s)
            self._note_lost(self._waiting.unfinished_tasks, f"not accepted within {deadline_s:g} s at the end")
        self._has_given_up.set()
        self._waiting.put(None)
        self._coordinator.close()
        if self._num_lost:
            log.warning("%d metric reports did not reach the coordinator: %s", self._num_lost, self._why_lost)
        if self._num_outdated:
            log.warning("%d reported metrics were not kept: %s", self._num_outdated, self._why_outdated)

    def _send_all(self) -> None:
        while not self._has_given_up.is_set():
            reports = [self._waiting.get()]
            with contextlib.suppress(queue.Empty):
                while len(reports) < MOST_AT_ONCE:
                    reports.append(self._waiting.get_nowait())
            self._send([each for each in reports if each is not None])
            for _ in reports:
                self._waiting.task_done()
            if None in reports:
                return
            self._is_closing.wait(GATHER_S)

    def _send(self, reports: Sequence[MetricReport]) -> None:
        """If they are refused, in halves, so that one refused report does not lose the others."""
        if not reports:
            return
        try:
            send = partial(self._call, MetricReports(reports=list(reports)))
            kept = patiently(send, math.inf, stop=self._has_given_up, say=self._say_once)
            self._num_outdated += kept.num_outdated
            self._why_outdated = kept.reason or self._why_outdated
        except Abandoned:
            return
        except EverstepError as error:
            if (half := len(reports) // 2) == 0:
                self._note_lost(1, error.message)
                return
            self._send(reports[:half])
            self._send(reports[half:])

    def _note_lost(self, number: int, why: str) -> None:
        """By either thread."""
        with self._counting:
            self._num_lost += number
            self._why_lost = why if number else self._why_lost

    def _say_once(self, why: str) -> None:
        if not self._is_said and not self._has_given_up.is_set():
            self._is_said = True
            log.warning("metrics wait for the coordinator: %s", why)
