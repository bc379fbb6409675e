"""What jobs find out is kept by the coordinator, on SQLite and on PostgreSQL; training never waits for that."""

from __future__ import annotations

import json
import logging
import math
import subprocess
import sys
from dataclasses import asdict, replace
from functools import partial

import httpx
import pytest

from everstep import wire
from everstep.cli.status import newest_line
from everstep.client.calls import Coordinator
from everstep.errors import Refused
from everstep.pytorch.metric_records import make_record, report_of
from everstep.pytorch.progress import BatchProgress
from everstep.record import sender as sending
from everstep.record.sender import MetricSender
from everstep.wire import MetricReport
from lab.command import until
from lab.reporting_script import Script

TRAINING = MetricReport(kind="training", step=100, time=1.5, values={"loss": 0.5})
VALIDATION = MetricReport(
    kind="validation", step=100, time=2.5, values={"accuracy": 0.9}, details={"matrix": [[1, None]], "is_best": True}
)


@pytest.fixture(scope="module")
def kept(server_on_each_store):
    return server_on_each_store


@pytest.fixture
def script(play, kept, puppet_class):
    one = play(kept)
    return Script(one, puppet_class(one.coordinator))


# --- what is kept ---


def test_numbers_become_series_and_the_rest_stays_readable(script):
    assert script.report(TRAINING, VALIDATION) == wire.MetricsKept(num_points=2)
    script.report(replace(TRAINING, step=200, time=3.5, values={"loss": 0.25}))

    assert script.series()["training/loss"] == wire.SeriesView(
        series=script.series()["training/loss"].series, name="training/loss", count=2, first_step=100, last_step=200,
        last_time=3.5, last=0.25, least=0.25, most=0.5,
    )  # fmt: skip
    assert script.points("training/loss") == {100: 0.5, 200: 0.25}
    view = script.coordinator.reports()
    assert view.reports == [
        wire.ReportView(kind="validation", step=100, time=2.5, details={"matrix": [[1, None]], "is_best": True})
    ]
    script.report(MetricReport(kind="checkpoint", step=150, time=4.0, details={"uuid": "u"}))
    assert [each.kind for each in script.coordinator.reports(since=view.last).reports] == ["checkpoint"]
    assert [each.kind for each in script.coordinator.reports(since=-1).reports] == ["checkpoint"]


def test_nan_and_infinities_are_kept_and_told_apart(script):
    script.losses([1.0, "nan", "inf", 3.0, "-inf"])

    view = script.series()["loss"]
    assert (view.count, view.least, view.most, view.last) == (5, 1.0, 3.0, "-inf")
    assert (view.nans, view.infs, view.negative_infs) == (1, 1, 1)
    one, nan, inf, three, low = script.points().values()
    assert (one, inf, three, low) == (1.0, math.inf, 3.0, -math.inf) and math.isnan(nan)
    window = script.coordinator.series_window(view.series, columns=1)
    assert (window.least, window.most, window.nans, window.infs, window.negative_infs) == ([1], [3], [1], [1], [1])


def test_a_later_report_of_a_step_replaces_it_everywhere(script):
    script.losses([9.0] * 40)
    script.losses([1.0], start=7)
    script.losses([0.5, 2.0], start=39)

    assert script.points() == dict.fromkeys(range(39), 9.0) | {7: 1.0, 39: 0.5, 40: 2.0}
    view = script.series()["loss"]
    assert (view.count, view.least, view.most, view.last) == (41, 0.5, 9.0, 2.0)


def test_jobs_do_not_see_each_others(script, play, kept, puppet_class):
    script.losses([1.0])
    other = play(kept)
    assert other.coordinator.series() == wire.SeriesList(series=[], num_series=0)
    with pytest.raises(Refused, match="has no series"):
        other.coordinator.series_window(script.series()["loss"].series)


# --- histories ---


def test_a_late_report_of_a_stale_worker_never_replaces_a_newer_one(play, kept):
    one = play(kept, start_workers=2)
    w0, w1 = one.training(2)
    stale, survivor = Script(one, w0), Script(one, w1)
    stale.losses([1.0] * 10, generation=1)
    w0.exit(-9)
    assert w1.arrive().generation == 2

    survivor.losses([2.0] * 5, generation=2, start=5)
    late = stale.losses([7.0] * 10, generation=1)

    assert (late.num_points, late.num_outdated) == (5, 5)  # nobody has trained the first five again
    assert late.reason == "a newer attempt or generation has trained these steps again"
    assert list(survivor.points().values()) == [7.0] * 5 + [2.0] * 5


def test_steps_that_are_trained_again_replace_all_that_came_after_them(play, kept):
    one = play(kept, start_workers=2)
    w0, w1 = one.training(2)
    before, after = Script(one, w0), Script(one, w1)
    before.losses([5.0] * 600, generation=1)
    before.report(MetricReport(kind="checkpoint", step=500, time=1.0, generation=1, details={"uuid": "void"}))
    w0.exit(-9)
    w1.arrive()

    after.losses([4.0], generation=2, start=300)  # from a checkpoint
    after.report(MetricReport(kind="checkpoint", step=310, time=1.0, generation=2, details={"uuid": "valid"}))

    view = after.series()["loss"]
    assert (view.count, view.last_step, view.least, view.last) == (301, 300, 4.0, 4.0)
    assert after.points() == dict.fromkeys(range(300), 5.0) | {300: 4.0}
    assert [each.details["uuid"] for each in after.coordinator.reports().reports] == ["valid"]
    late = before.report(MetricReport(kind="checkpoint", step=500, time=1.0, generation=1, details={"uuid": "void"}))
    assert late.num_outdated == 1
    assert [each.details["uuid"] for each in after.coordinator.reports().reports] == ["valid"]


def test_a_generation_that_does_not_exist_is_refused(script):
    with pytest.raises(Refused, match="generation 9 does not exist; the latest is 0"):
        script.losses([1.0], generation=9)


# --- what is refused ---


def test_workers_report_and_readers_read(tmp_path, server_class):
    (tmp_path / "token").write_text("worker:wwww\nuser:uuuu\nread-only:rrrr\n")
    (tmp_path / "token").chmod(0o600)
    server = server_class(tmp_path, str(tmp_path / "db"))
    user, worker, reader = (Coordinator(server.url, text, "roles") for text in ("user:uuuu", "worker:wwww", "rrrr"))
    user.create_job(wire.JobSpec())
    name = worker.reserve(wire.ReserveWorker(agent="a0", request="r")).worker
    worker.report_metrics(name, wire.MetricReports(reports=[TRAINING]))
    assert reader.series() == worker.series() == user.series()
    for each in (user, reader):
        with pytest.raises(Refused, match="403"):
            each.report_metrics(name, wire.MetricReports(reports=[TRAINING]))
    server.stop()


def body(**changes):
    return json.dumps({"reports": [{**asdict(TRAINING), **changes}]}).encode()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (body(values={"loss": float("nan")}), "values"),
        (body(values={"loss": "big"}), "values"),
        (body(values={"loss": [1.0]}), "values"),
        (body(details={"norms": [1.0, float("inf")]}), "inf is not finite"),
        (body(step=-1), "step: Input should be greater than or equal to 0"),
        (body(step=1.5), "step"),
        (body(values=[1.0]), "values"),
        (body(details={"n": 2**60}), "61 bits are too many"),
        (body(values={"a" * 300: 1.0}), "values.aaa"),
        (body(values={f"m{n}": 1.0 for n in range(1001)}), "at most 1000 items"),
        (body(kind="k" * 300), "kind: String should have at most 256 characters"),
        (body(details={"text": "x" * 70_000}), "bytes, more than 65536"),
        (body(details={"deep": [[[[[[[[[1]]]]]]]]]}), "nested more than 8 deep"),
        (body(surprise=1), "surprise"),
        (json.dumps({"reports": [asdict(TRAINING)] * 1001}).encode(), "at most 1000 items"),
    ],
)
def test_what_cannot_be_kept_is_refused(play, puppet_class, content, said):
    one = play()
    name = puppet_class(one.coordinator).name
    answer = httpx.post(
        f"{one.coordinator.url}/v1/jobs/{one.coordinator.job}/workers/{name}/metrics",
        content=content,
        headers={"authorization": f"Bearer {one.server.token}"},
        trust_env=False,
        timeout=60,
    )
    assert answer.status_code == 422
    assert said in answer.json()["detail"]
    assert one.coordinator.series().series == []


def test_a_job_or_worker_that_is_not_there_has_none(server, play):
    with Coordinator(server.url, server.token, "nowhere") as nowhere:
        reports = wire.MetricReports(reports=[TRAINING])
        for call in (lambda: nowhere.report_metrics("w0", reports), nowhere.series, nowhere.reports):
            with pytest.raises(Refused, match="404 there is no job nowhere"):
                call()
    with pytest.raises(Refused, match="w77"):
        play().coordinator.report_metrics("w77", reports)


LIMITS = """
import everstep.wire.limits as limits
limits.MAX_REPORTS, limits.MAX_SERIES, limits.MAX_POINTS = 2, 3, 4
"""


def test_there_are_so_many_and_no_more(tmp_path, server_class, play, puppet_class):
    server = server_class(tmp_path, str(tmp_path / "db"), before=LIMITS)
    one = play(server)
    script = Script(one, puppet_class(one.coordinator))
    script.report(MetricReport(step=1, time=1.0, values={"a": 1.0, "b": 1.0, "c": 1.0}, details={"text": "t"}))
    for values, details, code in (
        ({"d": 1.0}, {}, "too-many-series"),
        ({"a": 1.0, "b": 1.0}, {}, "too-many-points"),
        ({}, {}, "too-many-reports"),
    ):
        reports = [MetricReport(step=step, time=1.0, values=values, details=details) for step in (2, 3)]
        with pytest.raises(Refused) as refused:
            script.report(*reports)
        assert refused.value.code == code
    assert {name: view.count for name, view in script.series().items()} == {"a": 1, "b": 1, "c": 1}
    server.stop()


# --- everstep status ---


def test_status_says_the_newest_of_each_however_many_workers_are_sampled(play, puppet_class):
    one = play()
    one.coordinator.report("n0", wire.AgentReport(incarnation="i", node="n0", workers=[], wait_s=0.0))
    for first in (0, 900):
        values = {f"x{first + number}": 1.0 for number in range(900)}
        sample = MetricReport(kind="system/w0", step=1, time=1.0, values=values)
        one.coordinator.report_node_metrics("n0", wire.MetricReports(reports=[sample]))
    script = Script(one, puppet_class(one.coordinator))
    script.report(TRAINING, VALIDATION, replace(TRAINING, step=200, values={"loss": 0.25, "epochs": 2.0}))
    done = subprocess.run(
        [sys.executable, "-m", "everstep", "status", "--coordinator", one.server.url, "--job", one.coordinator.job,
         "--token-file", one.server.token_file],
        env={"PYTHONPATH": ":".join(sys.path), "COLUMNS": "100"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "training at step 200: loss 0.25 · validation at step 100: accuracy 0.9"


def test_without_metrics_there_is_no_line():
    assert newest_line([]) == ""


# --- the way there ---


@pytest.fixture
def said(caplog):
    caplog.set_level(logging.WARNING, sending.__name__)
    return caplog


def sender_for(script) -> MetricSender:
    given = script.coordinator
    coordinator = Coordinator(given.url, script.play.server.token, given.job)
    return MetricSender(coordinator, partial(coordinator.report_metrics, script.worker))


def loss(step, value=0.5):
    metrics = {"loss": value}
    return report_of(make_record("training", BatchProgress(batches=step), metrics), metrics, 0)


@pytest.fixture
def fragile(tmp_path, server_class, play, puppet_class):
    server = server_class(tmp_path, str(tmp_path / "db"))
    one = play(server)
    yield Script(one, puppet_class(one.coordinator))
    server.end()


def test_reports_arrive_by_the_time_it_is_closed(script, said):
    sender = sender_for(script)
    for step in range(1, 251):
        sender(loss(step, math.nan if step == 7 else 0.5))
    end = make_record("end", BatchProgress(batches=250), reason="done", best={"uuid": "u", "value": 0.5})
    sender(report_of(end, None, 0))
    sender.close(60.0)
    assert list(script.points("training/loss")) == list(range(1, 251))
    assert script.series()["training/loss"].nans == 1
    (end,) = script.coordinator.reports().reports
    assert (end.kind, end.details["reason"], end.details["best"]) == ("end", "done", {"uuid": "u", "value": 0.5})
    assert said.messages == []


def test_what_is_reported_while_the_coordinator_is_away_arrives_when_it_is_back(fragile, said):
    sender = sender_for(fragile)
    fragile.play.server.kill()
    for step in range(1, 11):
        sender(loss(step))  # nobody waits for the coordinator: it comes only after this
    fragile.play.server.start()
    sender.close(60.0)
    assert list(fragile.points("training/loss")) == list(range(1, 11))
    assert len(said.messages) <= 1


def test_what_never_arrives_is_counted_and_said(fragile, said, monkeypatch):
    monkeypatch.setattr(sending, "MOST_WAITING", 5)
    sender = sender_for(fragile)
    fragile.play.server.kill()
    for step in range(10):
        sender(loss(step))
    until(lambda: said.messages, lambda: "nothing was said of the coordinator that is away")
    sender.close(0.5)
    away, lost = said.messages
    assert away.startswith("metrics wait for the coordinator: still trying: POST http://127.0.0.1")
    assert lost == "10 metric reports did not reach the coordinator: not accepted within 0.5 s at the end"


def test_one_that_is_refused_takes_no_others_with_it(script, said):
    sender = sender_for(script)
    for step in range(3):
        sender(loss(step))
    sender(replace(loss(3), details={"text": "x" * 70_000}))
    sender(loss(4))
    sender.close(60.0)
    assert list(script.points("training/loss")) == [0, 1, 2, 4]
    (lost,) = said.messages
    assert lost.startswith("1 metric reports did not reach the coordinator: ") and "more than 65536" in lost


def test_without_a_coordinator_there_is_nobody_to_tell(monkeypatch):
    monkeypatch.delenv("EVERSTEP_COORDINATOR", raising=False)
    assert sending.open_sender() is None
