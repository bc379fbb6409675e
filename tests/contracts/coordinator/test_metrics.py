"""What fits find out is kept by the coordinator, and reaches it without training ever waiting for that."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from dataclasses import asdict, replace

import httpx
import pytest

from everstep import wire
from everstep.cli.status import newest_line
from everstep.client.calls import Coordinator
from everstep.errors import Refused
from everstep.pytorch import metric_records
from everstep.pytorch.metric_records import JobMetrics, make_record
from everstep.pytorch.progress import BatchProgress
from everstep.wire import MetricReport
from lab.command import until

TRAINING = MetricReport(kind="training", batches=100, time=1.5, epochs=0, records=6400, metrics={"loss": 0.5})
VALIDATION = replace(
    TRAINING, kind="validation", metrics={"accuracy": 0.9, "matrix": [[1, None]]}, facts={"best": True}
)


def record(batches, loss=0.5):
    return make_record("training", BatchProgress(batches=batches), {"loss": loss})


def batches_of(coordinator):
    return [each.batches for each in coordinator.metrics(limit=1000).reports]


# --- the store ---


def test_what_is_reported_is_kept_in_order(play):
    coordinator = play().coordinator
    coordinator.report_metrics(wire.MetricReports(reports=[TRAINING, VALIDATION]))
    coordinator.report_metrics(wire.MetricReports(reports=[replace(TRAINING, batches=200)]))

    first = coordinator.metrics(limit=2)
    assert first.reports == [TRAINING, VALIDATION]
    rest = coordinator.metrics(since=first.last)
    assert rest.reports == [replace(TRAINING, batches=200)]
    assert coordinator.metrics(since=rest.last) == wire.MetricsView(reports=[], last=rest.last)
    assert coordinator.metrics(since=-2).reports == [VALIDATION, *rest.reports]
    assert coordinator.metrics(since=-1000).reports == [TRAINING, VALIDATION, *rest.reports]


def test_of_one_kind_and_batch_the_last_word_counts_and_is_heard(play):
    coordinator = play().coordinator
    coordinator.report_metrics(wire.MetricReports(reports=[TRAINING, VALIDATION]))
    last = coordinator.metrics().last
    better = replace(TRAINING, metrics={"loss": 0.25})
    coordinator.report_metrics(wire.MetricReports(reports=[TRAINING, better]))  # also of one call

    assert coordinator.metrics().reports == [VALIDATION, better]
    assert coordinator.metrics(since=last).reports == [better]
    assert coordinator.metrics(since=-1).reports == [better]


def test_jobs_do_not_see_each_others(play):
    one, other = play().coordinator, play().coordinator
    one.report_metrics(wire.MetricReports(reports=[TRAINING]))
    assert other.metrics() == wire.MetricsView(reports=[], last=0)


def test_a_killed_coordinator_still_has_them(tmp_path, server_class, play):
    server = server_class(tmp_path, str(tmp_path / "db"))
    coordinator = play(server).coordinator
    coordinator.report_metrics(wire.MetricReports(reports=[TRAINING]))
    server.kill()
    server.start()
    assert coordinator.metrics().reports == [TRAINING]
    server.stop()


def test_postgres_keeps_them_too(tmp_path, server_class, postgres_url, play):
    server = server_class(tmp_path, postgres_url)
    coordinator = play(server).coordinator
    coordinator.report_metrics(wire.MetricReports(reports=[TRAINING, VALIDATION]))
    coordinator.report_metrics(wire.MetricReports(reports=[TRAINING, TRAINING]))
    assert coordinator.metrics().reports == [VALIDATION, TRAINING]
    server.stop()


def test_workers_report_and_readers_read(tmp_path, server_class):
    (tmp_path / "token").write_text("worker:wwww\nuser:uuuu\nread-only:rrrr\n")
    (tmp_path / "token").chmod(0o600)
    server = server_class(tmp_path, str(tmp_path / "db"))
    user, worker, reader = (Coordinator(server.url, text, "roles") for text in ("user:uuuu", "worker:wwww", "rrrr"))
    user.create_job(wire.JobSpec())
    worker.report_metrics(wire.MetricReports(reports=[TRAINING]))
    assert reader.metrics().reports == worker.metrics().reports == user.metrics().reports == [TRAINING]
    for each in (user, reader):
        with pytest.raises(Refused, match="403"):
            each.report_metrics(wire.MetricReports(reports=[TRAINING]))
    server.stop()


def body(**changes):
    return json.dumps({"reports": [{**asdict(TRAINING), **changes}]}).encode()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (body(metrics={"loss": float("nan")}), "nan is not finite"),
        (body(metrics={"norms": [1.0, float("inf")]}), "inf is not finite"),
        (body(batches=-1), "batches: Input should be greater than or equal to 0"),
        (body(batches=1.5), "batches"),
        (body(metrics=[1.0]), "metrics"),
        (body(metrics={"n": 2**60}), "61 bits are too many"),
        (body(metrics={"a" * 300: 1.0}), "300 characters"),
        (body(kind="k" * 300), "kind: String should have at most 256 characters"),
        (body(facts={"text": "x" * 70_000}), "bytes, more than 65536"),
        (body(facts={"deep": [[[[[[[[[1]]]]]]]]]}), "nested more than 8 deep"),
        (body(surprise=1), "surprise"),
        (json.dumps({"reports": [asdict(TRAINING)] * 1001}).encode(), "at most 1000 items"),
    ],
)
def test_what_cannot_be_kept_is_refused(play, content, said):
    coordinator = play().coordinator
    answer = httpx.post(
        f"{coordinator.url}/v1/jobs/{coordinator.job}/metrics",
        content=content,
        headers={"authorization": f"Bearer {play().server.token}"},
        trust_env=False,
        timeout=60,
    )
    assert answer.status_code == 422
    assert said in answer.json()["detail"]
    assert coordinator.metrics().reports == []


def test_a_job_that_is_not_there_has_none(server):
    with Coordinator(server.url, server.token, "nowhere") as nowhere:
        for call in (lambda: nowhere.report_metrics(wire.MetricReports(reports=[TRAINING])), nowhere.metrics):
            with pytest.raises(Refused, match="404 there is no job nowhere"):
                call()


def test_there_are_so_many_reports_and_no_more(tmp_path, server_class, play):
    before = "import everstep.wire.limits as limits\nlimits.MAX_REPORTS = 2\n"
    server = server_class(tmp_path, str(tmp_path / "db"), before=before)
    coordinator = play(server).coordinator
    coordinator.report_metrics(wire.MetricReports(reports=[TRAINING, VALIDATION]))
    with pytest.raises(Refused, match="metrics 3 times, the limit is 2"):
        coordinator.report_metrics(wire.MetricReports(reports=[replace(TRAINING, batches=101)]))
    server.stop()


# --- everstep status ---


def test_status_says_the_newest_of_each(play):
    one = play()
    one.coordinator.report_metrics(
        wire.MetricReports(reports=[TRAINING, VALIDATION, replace(TRAINING, batches=200, metrics={"loss": 0.25})])
    )
    done = subprocess.run(
        [sys.executable, "-m", "everstep", "status", "--coordinator", one.server.url, "--job", one.coordinator.job,
         "--token-file", one.server.token_file],
        env={"PYTHONPATH": ":".join(sys.path), "COLUMNS": "100"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "training at batch 200: loss 0.25 · validation at batch 100: accuracy 0.9"


def test_without_metrics_there_is_no_line():
    assert newest_line([]) == newest_line([replace(TRAINING, kind="checkpoint")]) == ""


# --- the way there ---


@pytest.fixture
def said(caplog):
    caplog.set_level(logging.WARNING, metric_records.__name__)
    return caplog


def client_for(play):
    coordinator = play.coordinator
    return Coordinator(coordinator.url, play.server.token, coordinator.job)


def test_records_arrive_by_the_time_it_is_closed(play, said):
    one = play()
    sender = JobMetrics(client_for(one))
    for batches in range(1, 251):
        sender(record(batches))
    sender(make_record("end", BatchProgress(batches=250), reason="done", best={"uuid": "u", "value": 0.5}))
    sender.close(60.0)
    *training, end = one.coordinator.metrics(limit=1000).reports
    assert [each.batches for each in training] == list(range(1, 251))
    assert (end.kind, end.facts) == ("end", {"reason": "done", "best": {"uuid": "u", "value": 0.5}})
    assert said.messages == []


def test_what_is_reported_while_the_coordinator_is_away_arrives_when_it_is_back(tmp_path, server_class, play, said):
    server = server_class(tmp_path, str(tmp_path / "db"))
    one = play(server)
    sender = JobMetrics(client_for(one))
    server.kill()
    for batches in range(1, 11):
        sender(record(batches))  # nobody waits for the coordinator: it comes only after this
    server.start()
    sender.close(60.0)
    assert batches_of(one.coordinator) == list(range(1, 11))
    assert len(said.messages) <= 1
    server.stop()


def test_what_never_arrives_is_counted_and_said(tmp_path, server_class, play, said, monkeypatch):
    monkeypatch.setattr(metric_records, "MOST_WAITING", 5)
    server = server_class(tmp_path, str(tmp_path / "db"))
    sender = JobMetrics(client_for(play(server)))
    server.kill()
    for batches in range(10):
        sender(record(batches))
    until(lambda: said.messages, lambda: "nothing was said of the coordinator that is away")
    sender.close(0.5)
    server.end()
    away, lost = said.messages
    assert away.startswith("metrics wait for the coordinator: still trying: POST http://127.0.0.1")
    assert lost == "10 metric records did not reach the coordinator: not accepted within 0.5 s at the end"


def test_one_that_is_refused_takes_no_others_with_it(play, said):
    one = play()
    sender = JobMetrics(client_for(one))
    for batches in range(3):
        sender(record(batches))
    sender(make_record("training", BatchProgress(batches=3), {"text": "x" * 70_000}))
    sender(record(4))
    sender.close(60.0)
    assert batches_of(one.coordinator) == [0, 1, 2, 4]
    (lost,) = said.messages
    assert lost.startswith("1 metric records did not reach the coordinator: ") and "more than 65536" in lost


def test_without_a_coordinator_there_is_nobody_to_tell(monkeypatch):
    monkeypatch.delenv("EVERSTEP_COORDINATOR", raising=False)
    assert metric_records.open_job_metrics() is None
