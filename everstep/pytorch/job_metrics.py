"""A fit's records on their way to the coordinator: by a thread of its own, so that training never waits.

While the coordinator is away, the newest records are kept and sent when it is back. What could not be sent is counted
and said at the end; it is in metrics.jsonl all the same."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from everstep import env
from everstep.client.calls import Coordinator
from everstep.errors import EverstepError, TemporaryError
from everstep.retry import decide_pause
from everstep.wire import MetricReport, MetricReports

log = logging.getLogger(__name__)

MOST_WAITING = 1000
MOST_AT_ONCE = 100
CLOSE_S = 5.0

_FIELDS = ("kind", "batches", "time", "epochs", "records")


def job_metrics() -> JobMetrics | None:
    """To this job's coordinator; None where there is none."""
    url, token = env.coordinator_url(), env.token()
    return JobMetrics(Coordinator(url, token, env.job())) if url and token else None


class JobMetrics:
    """Owns the coordinator's client. Call it with each record; close it at the end."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._waiting: deque[MetricReport] = deque()
        self._under_way: list[MetricReport] = []
        self._changed = threading.Condition()
        self._is_closing = False
        self._has_given_up = threading.Event()
        self._thread: threading.Thread | None = None
        self._num_lost, self._why = 0, ""
        self._is_said = False

    def __call__(self, record: Mapping[str, Any]) -> None:
        report = report_of(record)
        with self._changed:
            if len(self._waiting) >= MOST_WAITING:
                self._waiting.popleft()
                self._lose(1, f"more than {MOST_WAITING} were waiting")
            self._waiting.append(report)
            self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._send_all, name="job-metrics", daemon=True)
                self._thread.start()

    def close(self, deadline_s: float = CLOSE_S) -> None:
        """Send what waits, for at most so long; then say what was lost."""
        deadline = time.monotonic() + deadline_s
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
            while self._num_left and (left_s := deadline - time.monotonic()) > 0:
                self._changed.wait(left_s)
            self._lose(self._num_left, f"it did not take them within {deadline_s:g} s at the end")
            num_lost, why = self._num_lost, self._why
            self._waiting.clear()
        self._has_given_up.set()
        self._coordinator.close()
        if num_lost:
            log.warning("%d records of metrics did not reach the coordinator: %s", num_lost, why)

    @property
    def _num_left(self) -> int:
        return len(self._waiting) + len(self._under_way)

    def _lose(self, number: int, why: str) -> None:
        if number:
            self._num_lost, self._why = self._num_lost + number, why

    def _send_all(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    if self._is_closing:
                        return
                    self._changed.wait()
                self._under_way = [self._waiting.popleft() for _ in range(min(MOST_AT_ONCE, len(self._waiting)))]
            self._send(self._under_way)
            with self._changed:
                self._under_way = []
                self._changed.notify_all()

    def _send(self, reports: Sequence[MetricReport]) -> None:
        attempt = 0
        while not self._has_given_up.is_set():
            try:
                self._coordinator.report_metrics(MetricReports(reports=list(reports)))
                return
            except TemporaryError as failure:
                if not self._has_given_up.is_set() and not self._is_said:
                    self._is_said = True
                    log.warning("metrics wait for the coordinator: %s", failure.message)
                self._has_given_up.wait(max(decide_pause(attempt, random.random()), failure.wait_s))
                attempt += 1
            except EverstepError as error:
                self._send_singly(reports, error)
                return

    def _send_singly(self, reports: Sequence[MetricReport], error: EverstepError) -> None:
        """One that is refused takes no others with it."""
        if len(reports) > 1:
            for each in reports:
                self._send([each])
            return
        with self._changed:
            self._lose(1, error.message)


def report_of(record: Mapping[str, Any]) -> MetricReport:
    known = {name: record[name] for name in _FIELDS}
    facts = {name: value for name, value in record.items() if name not in (*_FIELDS, "metrics")}
    return MetricReport(**known, metrics=record.get("metrics", {}), facts=facts)
