"""Spans for OpenTelemetry, from a real coordinator to a real collector, on each store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from everstep import wire
from everstep.client.calls import Coordinator
from lab.command import until
from lab.reported_trials import ReportedTrials
from lab.span_collector import GotSpan, SpanCollector

pytest.importorskip("opentelemetry.sdk")
PATIENT = wire.Policy(lease_s=60.0, arrive_s=60.0, start_workers=2)


@pytest.fixture
def collector() -> Iterator[SpanCollector]:
    made = SpanCollector()
    yield made
    made.close()


@pytest.fixture
def server(server_class: Any, tmp_path: Path, store_url: str, collector: SpanCollector, monkeypatch: Any) -> Any:
    """A coordinator that is told of the collector by the standard variables."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20letter")
    made = server_class(tmp_path, store_url)
    yield made
    made.end()
    log = made.log_file.read_text()
    assert "Traceback" not in log, log


@pytest.fixture
def begin(server: Any, collector: SpanCollector) -> Iterator[Callable[..., Story]]:
    made: list[Story] = []

    def start(**given: Any) -> Story:
        made.append(Story(server, collector, given))
        return made[-1]

    yield start
    for each in made:
        each.reported.close()


class Story:
    """An experiment and its spans; the store, and so the collector, may have others."""

    def __init__(self, server: Any, collector: SpanCollector, given: dict[str, Any]) -> None:
        self.reported, self._collector = ReportedTrials(server, **given), collector
        self.number = self.reported.number
        self.root = f"experiment {self.number}"

    @property
    def spans(self) -> list[GotSpan]:
        return [each for each in self._collector.spans if self._is_ours(each)]

    def _is_ours(self, span: GotSpan) -> bool:
        is_in = str(span.facts.get("everstep.job", "")).startswith(f"e{self.number}-t")
        return is_in or span.facts.get("everstep.experiment") == self.number

    def wait(self, *names: str) -> None:
        until(lambda: {*names} <= {each.name for each in self.spans}, lambda: f"{names} are not all in {self.spans}")

    def one(self, name: str, **facts: Any) -> GotSpan:
        named = [each for each in self.spans if each.name == name]
        fit = [each for each in named if all(each.facts[f"everstep.{key}"] == value for key, value in facts.items())]
        (found,) = {each.id: each for each in fit}.values()
        return found


def train(job: Coordinator, puppet: type[Any]) -> None:
    """Two workers train; one dies, and the other goes on."""
    job.create_job(wire.JobSpec(policy=PATIENT))
    pair = first, second = puppet(job), puppet(job)
    for each in pair:
        each.announce()
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda each: each.arrive(), pair))
    for each in pair:
        each.settle()
    second.exit(-9)
    first.arrive()
    first.settle()


def check_tree(spans: list[GotSpan]) -> None:
    """One trace; each thing under one ID; each child within its parent, which is there."""
    assert len({each.trace for each in spans}) == 1
    by_key: dict[tuple[str, ...], set[str]] = {}
    for each in spans:
        by_key.setdefault(each.key, set()).add(each.id)
    assert [key for key, ids in by_key.items() if len(ids) > 1] == []
    by_id = {each.id: each for each in spans}
    for each in by_id.values():
        if each.parent:
            above = by_id[each.parent]
            assert above.start_s <= each.start_s + 1e-3 and each.end_s <= above.end_s + 1e-3, (each, above)


def test_an_experiment_is_one_trace_down_to_regroups_checkpoints_and_validations(
    begin: Any, collector: SpanCollector, puppet_class: type[Any]
) -> None:
    story = begin(name="digits", max_trials=2)
    with story.reported.toy.job(1) as job:
        train(job, puppet_class)
        job.report_checkpoint(wire.CheckpointReport(uuid="u-1", uri="/x", step=32, generation=2, num_bytes=7))
        job.target(wire.TargetRequest(wait_s=0.0))
        job.report_result(wire.TrialResult(length=32, metric=0.5, batches=32))
        story.wait("generation 1", "regroup", "checkpoint", "validation")
        job.stop(wire.Stop(reason="its slots are wanted"))
    story.reported.toy.train_all()
    story.wait(story.root, "trial 1", "trial 2", "generation 2")
    until(lambda: [each.name for each in story.spans].count("validation") == 3, lambda: f"{story.spans}")

    check_tree(story.spans)
    experiment, trial = story.one(story.root), story.one("trial 1")
    first, second = story.one("generation 1"), story.one("generation 2")
    assert (experiment.parent, trial.parent, first.parent, second.parent) == ("", experiment.id, trial.id, trial.id)
    regroup, checkpoint = story.one("regroup"), story.one("checkpoint")
    assert regroup.parent == checkpoint.parent == second.id
    assert (regroup.start_s, second.start_s) == (first.end_s, first.end_s)
    assert regroup.end_s > regroup.start_s and regroup.facts["everstep.parted"] == "w1"
    assert "died" in first.events and first.facts["everstep.workers"] == 2
    assert checkpoint.facts["everstep.checkpoint"] == "u-1" and checkpoint.facts["everstep.bytes"] == 7
    validation = story.one("validation", length=32)
    assert (validation.parent, validation.facts["everstep.metric"]) == (second.id, 0.5)
    view = story.reported.trials()[0]
    assert trial.facts["everstep.hparams.lr"] == view.hparams["lr"]
    assert (trial.start_s, trial.end_s) == (pytest.approx(view.created_at), pytest.approx(view.ended_at))
    assert (experiment.facts["everstep.name"], experiment.service, experiment.is_error) == ("digits", "everstep", False)
    assert collector.headers[0]["authorization"] == "Bearer letter"


def test_after_kill_9_the_trace_goes_on_under_the_same_ids(
    begin: Any, server: Any, collector: SpanCollector, puppet_class: type[Any]
) -> None:
    story = begin(max_trials=2)
    with story.reported.toy.job(1) as job:
        train(job, puppet_class)
        story.wait("generation 1", "regroup")
        collector.is_open = False  # what ends now is not sent before the kill
        job.stop(wire.Stop(reason="its slots are wanted"))
    story.reported.toy.train(1)
    until(lambda: collector.num_refused, lambda: "nothing was tried")
    server.kill()
    collector.is_open = True
    server.start()
    story.wait("validation", "trial 1", "generation 2")
    story.reported.toy.train_all()
    story.wait(story.root, "trial 2")

    check_tree(story.spans)


def test_what_was_sent_is_not_sent_again_by_the_next_coordinator(begin: Any, server: Any) -> None:
    first = begin(max_trials=1)
    first.reported.toy.train_all()
    first.wait(first.root)
    for _ in range(2):  # later: that the first one was sent is kept by the second's end
        second = begin(max_trials=1)
        second.reported.toy.train_all()
        second.wait(second.root)
    server.kill()
    server.start()
    third = begin(max_trials=1)
    third.reported.toy.train_all()
    third.wait(third.root)
    assert [each.name for each in first.spans].count(first.root) == 1


def test_a_job_of_its_own_is_a_trace(server: Any, collector: SpanCollector, puppet_class: type[Any]) -> None:
    with Coordinator(server.url, server.token, "alone") as job:
        train(job, puppet_class)
        job.report_checkpoint(wire.CheckpointReport(uuid="u-2", uri="/x", step=32, generation=2))
        job.stop(wire.Stop(reason="enough"))

    def spans() -> list[GotSpan]:
        return [each for each in collector.spans if each.facts.get("everstep.job") == "alone"]

    wanted = {"job alone", "generation 1", "generation 2", "regroup", "checkpoint"}
    until(lambda: wanted == {each.name for each in spans()}, lambda: f"{spans()}")
    check_tree(spans())
    (root,) = [each for each in spans() if not each.parent]
    assert root.is_error and root.facts["everstep.reason"] == "enough"


def test_a_collector_that_is_away_costs_the_callers_nothing(begin: Any, collector: SpanCollector) -> None:
    collector.is_open = False
    story = begin(max_trials=2)
    assert story.reported.toy.train_all().state == "COMPLETED", "no call waited for it"
    until(lambda: collector.num_refused, lambda: "nothing was tried")
    collector.is_open = True
    story.wait(story.root, "trial 1", "trial 2")
    check_tree(story.spans)


def test_nothing_is_made_unless_it_is_asked_for(
    server_class: Any, tmp_path: Path, collector: SpanCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    server = server_class(tmp_path, str(tmp_path / "store.db"))
    reported = ReportedTrials(server, max_trials=1)
    reported.toy.train_all()
    reported.close()
    server.stop()
    assert (collector.spans, collector.num_refused) == ([], 0)
