"""Spans for OpenTelemetry, from a real coordinator to a real collector, on each store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from everstep import wire
from everstep.client.calls import Coordinator
from lab.command import until
from lab.reported_trials import ReportedTrials
from lab.span_collector import GotSpan, SpanCollector

pytest.importorskip("opentelemetry.sdk")
PATIENT = wire.Policy(lease_s=60.0, arrive_s=60.0)


@pytest.fixture
def collector() -> Iterator[SpanCollector]:
    made = SpanCollector()
    yield made
    made.close()


@pytest.fixture
def begin(server_class: Any, tmp_path: Path, store_url: str, collector: SpanCollector, monkeypatch: Any) -> Any:
    """A coordinator that is told of the collector by the standard variables."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20letter")
    made = []

    def start() -> Any:
        made.append(server_class(tmp_path, store_url))
        return made[-1]

    yield start
    for each in made:
        each.end()
        log = each.log_file.read_text()
        assert "Traceback" not in log and "no spans" not in log, log


def trained(job: Coordinator, puppet: type[Any]) -> Any:
    """Two workers train, one dies, the other goes on: it is returned."""
    job.create_job(wire.JobSpec(policy=PATIENT))
    first, second = puppet(job), puppet(job)
    for each in (first, second):
        each.announce()
    until(lambda: all(each.arrive_once().is_formed for each in (first, second)))
    for each in (first, second):
        each.generation = 1
        each.settle()
    second.exit(-9)
    first.arrive()
    first.settle()
    return first


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
    server = begin()
    reported = ReportedTrials(server, name="digits", max_trials=2)
    with reported.toy.job(1) as job:
        trained(job, puppet_class)
        job.report_checkpoint(wire.CheckpointReport(uuid="u-1", uri="/x", step=32, generation=2, num_bytes=7))
    until(lambda: {"generation 1", "regroup", "checkpoint"} <= set(collector.names()), lambda: f"{collector.names()}")
    reported.toy.train_all()
    root = f"experiment {reported.number}"
    until(
        lambda: root in collector.names() and collector.names().count("validation") == 2, lambda: f"{collector.spans}"
    )
    until(lambda: {"trial 1", "trial 2", "generation 2"} <= set(collector.names()), lambda: f"{collector.names()}")

    check_tree(collector.spans)
    experiment, trial = collector.one(root), collector.one("trial 1")
    first, second = collector.one("generation 1"), collector.one("generation 2")
    assert (experiment.parent, trial.parent, first.parent, second.parent) == ("", experiment.id, trial.id, trial.id)
    regroup, checkpoint = collector.one("regroup"), collector.one("checkpoint")
    assert regroup.parent == checkpoint.parent == second.id
    assert (regroup.start_s, second.start_s) == (first.end_s, first.end_s)
    assert regroup.end_s > regroup.start_s and regroup.facts["everstep.parted"] == "w1"
    assert "died" in first.events and first.facts["everstep.workers"] == 2
    assert checkpoint.facts["everstep.checkpoint"] == "u-1" and checkpoint.facts["everstep.bytes"] == 7
    assert collector.one("validation", job=trial.facts["everstep.job"]).parent == second.id
    view = reported.trials()[0]
    assert trial.facts["everstep.hparams.lr"] == view.hparams["lr"]
    assert (trial.start_s, trial.end_s) == (pytest.approx(view.created_at), pytest.approx(view.ended_at))
    assert (experiment.facts["everstep.name"], experiment.service, experiment.is_error) == ("digits", "everstep", False)
    assert collector.headers[0]["authorization"] == "Bearer letter"
    reported.close()


def test_after_kill_9_the_trace_goes_on_under_the_same_ids(
    begin: Any, collector: SpanCollector, puppet_class: type[Any]
) -> None:
    server = begin()
    reported = ReportedTrials(server, max_trials=2)
    with reported.toy.job(1) as job:
        trained(job, puppet_class)
    until(lambda: {"generation 1", "regroup"} <= set(collector.names()), lambda: f"{collector.names()}")
    collector.is_open = False  # what ends now is not sent before the kill
    reported.toy.train(1)
    until(lambda: collector.num_refused, lambda: "nothing was tried")
    server.kill()
    collector.is_open = True
    server.start()
    until(lambda: "validation" in collector.names(), lambda: f"{collector.names()}")
    reported.toy.train_all()
    wanted = {f"experiment {reported.number}", "trial 1", "trial 2", "generation 1", "generation 2", "validation"}
    until(lambda: wanted <= set(collector.names()), lambda: f"{collector.names()}")

    check_tree(collector.spans)
    reported.close()


def test_what_was_sent_is_not_sent_again_by_the_next_coordinator(begin: Any, collector: SpanCollector) -> None:
    server = begin()
    first = ReportedTrials(server, max_trials=1)
    first.toy.train_all()
    root = f"experiment {first.number}"
    until(lambda: root in collector.names(), lambda: f"{collector.names()}")
    second = ReportedTrials(server, max_trials=1)  # noted later: what the first one has sent is kept by then
    second.toy.train_all()
    until(lambda: f"experiment {second.number}" in collector.names(), lambda: f"{collector.names()}")
    server.kill()
    server.start()
    third = ReportedTrials(server, max_trials=1)
    third.toy.train_all()
    until(lambda: f"experiment {third.number}" in collector.names(), lambda: f"{collector.names()}")
    assert collector.names().count(root) == 1
    for each in (first, second, third):
        each.close()


def test_a_job_of_its_own_is_a_trace(begin: Any, collector: SpanCollector, puppet_class: type[Any]) -> None:
    server = begin()
    with Coordinator(server.url, server.token, "alone") as job:
        trained(job, puppet_class)
        job.report_checkpoint(wire.CheckpointReport(uuid="u-2", uri="/x", step=32, generation=2))
        job.stop(wire.Stop(reason="enough"))
    wanted = {"job alone", "generation 1", "generation 2", "regroup", "checkpoint"}
    until(lambda: wanted <= set(collector.names()), lambda: f"{collector.names()}")
    check_tree(collector.spans)
    assert collector.one("job alone").is_error and collector.one("job alone").facts["everstep.reason"] == "enough"


def test_a_collector_that_is_away_costs_the_callers_nothing(begin: Any, collector: SpanCollector) -> None:
    collector.is_open = False
    server = begin()
    reported = ReportedTrials(server, max_trials=2)
    assert reported.toy.train_all().state == "COMPLETED", "no call waited for it"
    until(lambda: collector.num_refused, lambda: "nothing was tried")
    collector.is_open = True
    until(lambda: f"experiment {reported.number}" in collector.names(), lambda: f"{collector.names()}")
    check_tree(collector.spans)
    reported.close()


def test_nothing_is_made_unless_it_is_asked_for(
    server_class: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collector = SpanCollector()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    server = server_class(tmp_path, str(tmp_path / "store.db"))
    reported = ReportedTrials(server, max_trials=1)
    reported.toy.train_all()
    reported.close()
    assert server.stop() < 0
    server.end()
    assert (collector.spans, collector.num_refused) == ([], 0)
    collector.close()
