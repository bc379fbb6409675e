"""Trials of an experiment with points and checkpoints that their workers have reported."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from everstep import wire
from everstep.client.calls import Coordinator
from everstep.jobs.coordinator_link import CoordinatorLink
from lab.experiments import ToyTrials, spec

Points = Mapping[str, Sequence[tuple[int, float, float | str]]]  # by series: step, time, value


class ReportedTrials:
    def __init__(self, server: Any, **given: Any) -> None:
        """`given`: of the specification."""
        self.url, self.token = server.url, server.token
        with Coordinator(self.url, self.token, "none") as people:
            self.number = people.create_experiment(spec(**given)).experiment
        self.toy = ToyTrials(self.url, self.token, self.number)

    def close(self) -> None:
        self.toy.close()

    def link(self) -> CoordinatorLink:
        return CoordinatorLink(lambda: (self.url, self.token))

    def report(self, trial: int, points: Points) -> None:
        with self.toy.open(trial) as job:
            worker = job.reserve(wire.ReserveWorker(agent="a0", request=uuid.uuid4().hex)).worker
            for name, found in points.items():
                kind, _, last = name.rpartition("/")
                reports = [
                    wire.MetricReport(kind=kind, step=step, time=time, values={last: value})
                    for step, time, value in found
                ]
                for first in range(0, len(reports), 1000):
                    job.report_metrics(worker, wire.MetricReports(reports=reports[first : first + 1000]))

    def save(self, trial: int, uri: str, step: int) -> str:
        found = str(uuid.uuid4())
        with self.toy.open(trial) as job:
            job.report_checkpoint(wire.CheckpointReport(uuid=found, uri=uri, step=step, metrics={"loss": 0.5}))
        return found

    def trials(self) -> list[wire.TrialView]:
        """By a connection of its own, which a test does not leave behind."""
        looking = ToyTrials(self.url, self.token, self.number)
        try:
            return looking.trials()
        finally:
            looking.close()
