"""What would be submitted, and what is decided: pure, without the SDK and without the service."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from everstep.job_file.load import load_file
from everstep.platforms.base import SubmitRequest, Ticket
from everstep.platforms.oci.platform import OciPlatform
from everstep.platforms.oci.runs import OciRun, RunNames, decide_end, decide_scale, decide_status
from everstep.platforms.oci.search import (
    LAST_LINE,
    LATE_S,
    MAX_RECORDS,
    FollowedRuns,
    LogRecord,
    SearchWindow,
    TooLarge,
    follow,
)
from everstep.platforms.raw_overlay import lay_over
from everstep.storage.code_archive import Code
from lab.oci.tenancy import ROOT
from lab.refused import refused

HERE = Path(__file__).parent
ADS = ROOT / "tests" / "unit" / "job_file" / "files" / "ads.yaml"
CODE = Code(sha256="c0de" * 16, data=b"")


def rendered(file: Path, *changes: str) -> SubmitRequest:
    ticket = Ticket(id="train-1", folder=Path("/home/me/runs/train-1"), workdir=Path("/home/me"), code=CODE)
    return OciPlatform().render(load_file(file, list(changes)).job, ticket)


# --- the objects ---


@pytest.mark.parametrize("name", ["ads", "multinode"])
def test_the_objects_are_the_checked_in_ones(name: str) -> None:
    source = ADS if name == "ads" else HERE / "rendered" / "multinode_job.yaml"
    assert rendered(source).text == (HERE / "rendered" / f"{name}.yaml").read_text()


def test_the_sdk_knows_every_key_that_is_sent() -> None:
    models = pytest.importorskip("oci").data_science.models
    for name in ("ads", "multinode"):
        told = yaml.safe_load((HERE / "rendered" / f"{name}.yaml").read_text())
        bodies = [(models.CreateJobDetails, told["job"])] + [
            (models.CreateJobRunDetails, run) for run in told["jobRuns"]
        ]
        for model, body in bodies:
            _check_keys(models, model(), body)


def _check_keys(models: object, model: object, body: dict[str, object]) -> None:
    names = {theirs: ours for ours, theirs in model.attribute_map.items()}  # type: ignore[attr-defined]
    for key, value in body.items():
        assert key in names, f"{type(model).__name__} has no {key}"
        kind = model.swagger_types[names[key]]  # type: ignore[attr-defined]
        for each in value if isinstance(value, list) else [value]:
            inner = getattr(models, kind.removeprefix("list[").removesuffix("]"), None)
            if inner is not None and isinstance(each, dict):
                subtype = getattr(inner, "get_subtype", None)
                _check_keys(models, getattr(models, subtype(each))() if subtype else inner(), each)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ("platform.oci.work_dir=", "oci-option-missing"),
        ("image=", "oci-option-missing"),
        ("secrets={KEY: 'kubernetes:a/b'}", "secret-kind-unsupported"),
        ("volumes=['./data:/data']", "oci-volume-unsupported"),
        ("env={LONG: " + "x" * 20_000 + "}", "oci-environment-too-long"),
    ],
)
def test_what_cannot_be_done_is_refused_with_a_way_out(change: str, code: str) -> None:
    with refused(code) as error:
        rendered(ADS, change)
    assert error.value.hint


def test_raw_is_laid_over_what_we_would_send() -> None:
    ours = {"a": {"b": 1, "list": [1]}, "kept": True}
    assert lay_over(ours, {"a": {"b": 2, "list": [2], "c": 3}, "d": 4}) == {
        "a": {"b": 2, "list": [1, 2], "c": 3},
        "kept": True,
        "d": 4,
    }


# --- the runs ---


NAMES = RunNames(main="main", worker="worker")


def runs(*states: str) -> list[OciRun]:
    return [OciRun(id=f"run{rank}", name=NAMES.of(rank), rank=rank, state=state) for rank, state in enumerate(states)]


def test_the_names_tell_the_ranks() -> None:
    assert [NAMES.of(rank) for rank in range(3)] == ["main", "worker-0", "worker-1"]
    assert [NAMES.rank_of(name) for name in ("main", "worker-1", "worker-x", "other")] == [0, 2, None, None]


@pytest.mark.parametrize(
    ("states", "state", "reason"),
    [
        (("ACCEPTED", "ACCEPTED"), "pending", "0 of 2 runs in progress"),
        (("IN_PROGRESS", "FAILED", "IN_PROGRESS"), "running", "2 of 2 runs in progress"),
        (("SUCCEEDED", "IN_PROGRESS"), "succeeded", "not over yet: worker-0"),
        (("FAILED", "SUCCEEDED"), "failed", "main: FAILED"),
        (("CANCELED", "CANCELED"), "canceled", "main: CANCELED"),
        ((), "unknown", "no run of rank 0"),
    ],
)
def test_the_run_of_rank_0_decides_what_the_job_is(states: Sequence[str], state: str, reason: str) -> None:
    status = decide_status(runs(*states))
    assert status.state == state and reason in status.reason


def test_growing_replaces_lost_runs_by_new_ranks_and_shrinking_spares_rank_0() -> None:
    now = runs("IN_PROGRESS", "FAILED", "IN_PROGRESS")
    assert decide_scale(now, 3).add == (3,)
    assert [run.rank for run in decide_scale(now, 1).cancel] == [2]
    assert decide_scale(now, 2) == decide_scale(now, 2).__class__(reason="2 runs, 2 wanted: 0 more")
    with refused("oci-main-run-over"):
        decide_scale(runs("FAILED", "IN_PROGRESS"), 2)


def test_the_coordinators_run_is_canceled_first_and_a_run_that_does_not_end_is_named() -> None:
    now = runs("IN_PROGRESS", "CANCELING", "ACCEPTED")
    orders = decide_end(now, asked={"run2"}, waited_s=1.0, patience_s=10.0)
    assert [run.rank for run in orders.cancel] == [0]
    assert decide_end(now, asked=set(), waited_s=11.0, patience_s=10.0).is_hopeless
    assert "worker-0 is CANCELING" in decide_end(now, asked=set(), waited_s=11.0, patience_s=10.0).reason
    assert decide_end(runs("CANCELED"), asked=set(), waited_s=0.0, patience_s=10.0).is_done


# --- the log ---


class Log:
    """A search service with a clock of its own: records are found from a moment on, more than once, 1000 at a time."""

    def __init__(self, *records: tuple[float, float, str], over_at: float) -> None:
        self.records, self.now, self.over_at, self.num_calls = records, 1000.0, over_at, 0

    def search(self, query: str, window: SearchWindow) -> list[LogRecord]:
        self.num_calls += 1
        assert "source = '*run0'" in query
        found = [
            LogRecord(id=f"{at} {text}", at=at, source="prefix.run0", text=text)
            for at, found_at, text in self.records
            if found_at <= self.now and window.start <= at <= window.end
        ]
        if len(found) > 3 * MAX_RECORDS:
            raise TooLarge
        return sorted(found, key=lambda record: record.at)[:MAX_RECORDS]

    def lines(self, *, follows: bool = True) -> list[str]:
        def sleep(seconds: float) -> None:
            self.now += seconds

        def look() -> FollowedRuns:
            return FollowedRuns(names={"run0": "main"}, is_over=self.now >= self.over_at)

        found = follow(self.search, "a/b/c", look, since=1000.0, follows=follows, sleep=sleep, clock=lambda: self.now)
        return [line.text for line in found]


def test_a_record_that_comes_a_minute_after_its_time_is_not_missed() -> None:
    log = Log((1001, 1002, "early"), (1003, 1063, "late"), (1004, 1090, LAST_LINE), over_at=1010)
    assert log.lines() == ["early", "late"]
    assert log.now < 1010 + LATE_S  # the last line was seen: no need to wait for more


def test_without_a_last_line_it_ends_some_time_after_the_run() -> None:
    log = Log((1001, 1002, "killed in the midst"), over_at=1010)
    assert log.lines() == ["killed in the midst"]
    assert log.now > 1010 + LATE_S


@pytest.mark.parametrize("num_records", [MAX_RECORDS, 2500, 7000])
def test_more_records_than_fit_into_an_answer_are_all_read_once(num_records: int) -> None:
    log = Log(*((900 + number / 100, 0.0, f"line {number}") for number in range(num_records)), over_at=0.0)
    assert log.lines(follows=False) == [f"line {number}" for number in range(num_records)]
