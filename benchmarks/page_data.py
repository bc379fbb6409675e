"""What the page is measured with: a coordinator's store with many jobs, nearly all of them over, and a long series; and
a job that reports all the time."""

from __future__ import annotations

import math
import threading
import time

from everstep import wire
from everstep.client.calls import Coordinator
from everstep.coordinator.roster import changes, marks
from everstep.coordinator.roster.facts import Roster
from everstep.coordinator.store.store import Store
from everstep.record.store import MetricStore
from everstep.record.writing import Incoming

PLOT_JOB, LIVE_JOB = "plotted", "live"
NUM_CURVES = 100
AT_ONCE = 10_000
ONE_OPEN_OF = 100
HOUR_S = 3600.0


def value_at(step: int) -> float:
    return math.sin(step)


def fill_points(store: str, num_points: int) -> None:
    """A long series that is there before the coordinator."""
    record = MetricStore(store, epoch=0)
    for start in range(0, num_points, AT_ONCE):
        steps = range(start, min(num_points, start + AT_ONCE))
        reports = [wire.MetricReport(step=step, time=float(step), values={"x": value_at(step)}) for step in steps]
        record.keep([Incoming(PLOT_JOB, -1, reports)])
    record.close()


def fill_jobs(store_url: str, num_jobs: int) -> None:
    """One of a hundred is still open; the others have finished or were stopped."""
    store, began = Store(store_url), time.time() - num_jobs * HOUR_S
    for number in range(num_jobs):
        at = began + number * HOUR_S
        roster = Roster(job=f"job-{number}", name=f"train_{number % 7}.py", policy=wire.Policy())
        found = [marks.created(marks.Moment(number=1, time=at))]
        if number % ONE_OPEN_OF:
            over = changes.finish(roster, "done") if number % 3 else changes.stop(roster, "stopped by a user")
            end = marks.Moment(number=2, time=at + number % 97, step=number % 1009)
            found, roster = [*found, *marks.marks_between(roster, over, end)], over
        store.save(None, roster, found)
    plotted = Roster(job=PLOT_JOB, name="plotted", policy=wire.Policy())
    store.save(None, plotted, [marks.created(marks.Moment(number=1, time=time.time()))])
    store.close()


class Live:
    """A job that reports like a training would: each series gets a point per period."""

    def __init__(self, url: str, token: str) -> None:
        self.period_s, self._is_over = 1.0, threading.Event()
        self._coordinator = Coordinator(url, token, LIVE_JOB)
        self._coordinator.create_job(wire.JobSpec(name="live"))
        self._worker = self._coordinator.reserve(wire.ReserveWorker(agent="node1", request="one")).worker
        self._thread = threading.Thread(target=self._report)

    def _report(self) -> None:
        step = 0
        while not self._is_over.wait(self.period_s):
            step += 1
            values = {f"curve/{i}": math.sin(step / 30 + i) for i in range(NUM_CURVES)}
            report = wire.MetricReport(step=step, time=time.time(), values=values)
            self._coordinator.report_metrics(self._worker, wire.MetricReports(reports=[report]))

    def __enter__(self) -> Live:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        self._coordinator.close()
