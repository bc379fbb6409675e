"""A worker that does nothing but report metrics, and reads back what was kept."""

from __future__ import annotations

from typing import Any

from everstep import wire
from everstep.wire import MetricReport


class Script:
    """A worker that does nothing but report."""

    def __init__(self, play: Any, puppet: Any) -> None:
        self.play, self.coordinator, self.worker = play, play.coordinator, puppet.name

    def report(self, *reports: MetricReport) -> wire.MetricsKept:
        return self.coordinator.report_metrics(self.worker, wire.MetricReports(reports=list(reports)))

    def losses(self, values: Any, generation: int = 0, start: int = 0) -> wire.MetricsKept:
        steps = enumerate(values, start)
        return self.report(
            *(MetricReport(step=step, time=1.0, generation=generation, values={"loss": each}) for step, each in steps)
        )

    def series(self) -> dict[str, wire.SeriesView]:
        return {each.name: each for each in self.coordinator.series().series}

    def points(self, name: str = "loss") -> dict[int, float]:
        series = self.series()[name]
        found, start = {}, 0
        while start <= series.last_step:
            window = self.coordinator.series_window(series.series, start=start, is_full=True)
            found |= zip(window.first_steps, map(float, window.firsts), strict=True)
            start = window.stop
        return found
