"""everstep.report in a script: what it takes, and what it does where there is nobody to report to."""

from __future__ import annotations

import logging
import math

import pytest

import everstep
from everstep.errors import UsageError
from everstep.record import report as reporting
from everstep.record import report_answer, standing
from everstep.record.numbers import split
from everstep.record.standing import Standing
from everstep.record.trial import TrialFacts
from lab.refused import refused


@pytest.fixture
def sent(monkeypatch):
    """What is sent, in a job."""
    found = []
    monkeypatch.setattr(reporting, "_sender", found.append)
    monkeypatch.setattr(standing, "_find", None)
    return found


@pytest.mark.parametrize(
    ("metrics", "step", "code"),
    [
        ([1.0], 1, "report-not-a-dict"),
        ({1: 1.0}, 1, "metric-name-invalid"),
        ({"": 1.0}, 1, "metric-name-invalid"),
        ({"n" * 257: 1.0}, 1, "metric-name-invalid"),
        ({str(n): 1.0 for n in range(1001)}, 1, "too-many-metrics"),
        ({"loss": 1.0}, -1, "report-step-invalid"),
        ({"loss": 1.0}, 1.5, "report-step-invalid"),
        ({"loss": 1.0}, None, "report-step-invalid"),
    ],
)
def test_what_is_no_report_is_refused_on_every_worker(sent, metrics, step, code):
    standing.follow(lambda: Standing(is_reporter=False))
    with refused(code, everstep.errors.UsageError):
        everstep.report(metrics, step=step)
    assert sent == []


def test_rank_0_reports_with_its_generation_whoever_that_is_at_the_time(sent):
    world = Standing(is_reporter=True, generation=3)
    standing.follow(lambda: world)
    everstep.report({"loss": 0.5, "text": "good"}, step=7)
    world = Standing(is_reporter=False, generation=4)
    everstep.report({"loss": 0.25}, step=8)

    (report,) = sent
    assert (report.step, report.generation, report.values) == (7, 3, {"loss": 0.5})
    assert report.details == {"text": "good"}


def test_without_an_engine_the_launcher_says_who_is_rank_0(sent, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    everstep.report({"loss": 0.5}, step=1)
    assert sent == []
    monkeypatch.setenv("RANK", "0")
    everstep.report({"loss": 0.5}, step=1)
    assert len(sent) == 1


def test_outside_a_job_it_is_said_once_and_nothing_else_happens(monkeypatch, caplog):
    monkeypatch.delenv("EVERSTEP_COORDINATOR", raising=False)
    monkeypatch.setattr(reporting, "_is_said", False)
    monkeypatch.setattr(standing, "_find", None)
    caplog.set_level(logging.INFO, "everstep")
    for step in range(3):
        everstep.report({"loss": 0.5}, step=step)
    assert caplog.messages == [
        "everstep.report: not in a job, so no metrics are kept; `everstep run SCRIPT` starts one"
    ]


def test_numbers_of_all_kinds_are_numbers_and_the_rest_is_kept_as_it_is():
    class Scalar:
        def tolist(self):
            return 2.5

    values, details = split(
        {"a": 1, "b": True, "c": math.nan, "d": -math.inf, "e": Scalar(), "f": 10**400, "g": None, "h": [1, math.nan]}
    )
    assert values == {"a": 1.0, "b": 1.0, "c": "nan", "d": "-inf", "e": 2.5, "f": "inf"}
    assert details == {"g": None, "h": [1, None]}


def test_steps_are_not_taken_for_epochs(sent, monkeypatch):
    facts = TrialFacts(experiment=1, trial=1, trial_id=1, metric="loss", unit="epochs")
    monkeypatch.setattr(report_answer, "current_trial", lambda: facts)
    with pytest.raises(UsageError, match="counts lengths by 'epochs', which is missing") as caught:
        everstep.report({"loss": 1.0}, step=16)
    assert caught.value.code == "searcher-time-metric-missing"
    assert '{"loss": …, "epochs": …}' in str(caught.value.hint)


def test_a_trial_that_never_reports_the_searchers_metric_is_told_so_at_its_end(sent, monkeypatch, caplog):
    facts = TrialFacts(experiment=1, trial=1, trial_id=1, metric="val_loss")
    monkeypatch.setattr(report_answer, "current_trial", lambda: facts)
    monkeypatch.setattr(report_answer, "_others", ())
    ends = []
    monkeypatch.setattr(report_answer.atexit, "register", lambda call, *args: ends.append((call, args)))

    assert everstep.report({"loss": 1.0}, step=1) and everstep.report({"loss": 0.5}, step=2)
    ((call, args),) = ends
    call(*args)

    assert "report() never got the searcher's metric val_loss, only loss: correct searcher.metric" in caplog.text
