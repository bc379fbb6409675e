"""A job's order survives the trip; foreign orders are refused."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from everstep.checkpoint import index
from everstep.errors import UsageError
from everstep.job_file.load import load
from everstep.job_file.order import NodeOrder, order_of, policy_of
from everstep.job_file.secret import parse_secret
from everstep.jobs import submitted
from everstep.jobs.submitted import resolve
from everstep.platforms.base import JobRecord, refuse_foreign
from lab.refused import refused

AWKWARD = ["two words", "it's", 'a "quote"', "new\nline", "", "ünï"]


def test_an_order_reads_back_as_itself() -> None:
    job = load(json.dumps({"entrypoint": ["train.py", *AWKWARD], "nodes": "2:5", "env": {"A": "b\nc"}, "setup": ["x"]}))
    order = order_of(job.job, "job-1", code="f" * 64, workdir="/work")
    assert NodeOrder.from_json(order.to_json()) == order
    assert order.args == tuple(AWKWARD)
    assert (policy_of(order).min_nodes, policy_of(order).max_nodes) == (2, 5)


@pytest.mark.parametrize(("limit", "grace_s"), [("40s", 20.0), ("2m", 60.0), ("1h", 60.0)])
def test_a_job_of_little_time_leaves_late_enough_to_train(limit: str, grace_s: float) -> None:
    assert order_of(load(f"entrypoint: a.py\ntime_limit: {limit}\n").job, "j").grace_s == grace_s


def test_the_backend_reaches_the_workers_as_their_variable() -> None:
    order = order_of(load("entrypoint: a.py\nbackend: nccl\nenv: {A: b}\n").job, "j")
    assert order.env == {"A": "b", "EVERSTEP_BACKEND": "nccl"}
    assert order_of(load("entrypoint: a.py").job, "j").env == {}


def test_defaults_do_not_travel() -> None:
    order = NodeOrder(job="j", name="n", script="s.py")
    assert json.loads(order.to_json()) == {"job": "j", "name": "n", "script": "s.py"}
    assert NodeOrder.from_json(order.to_json()) == order


@pytest.mark.parametrize("text", ["", "{", "[]", '{"job": "j"}', '{"job":"j","name":"n","script":"s","new_key":1}'])
def test_what_is_no_order_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        NodeOrder.from_json(text)


def test_a_policy_that_cannot_be_is_refused_before_anything_starts() -> None:
    job = load("entrypoint: a.py\nhealth: {heartbeat_s: 5, lease_s: 2}\n").job
    with refused("policy-invalid"):
        policy_of(order_of(job, "j"))


def test_secrets_are_found_where_they_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").write_text("from file\n")
    monkeypatch.setenv("OUTER", "from outside")
    secrets = {
        "A": parse_secret("env:OUTER"),
        "B": parse_secret(f"file:{tmp_path / 'key'}"),
        "C": parse_secret("plain"),
        "D": parse_secret("kubernetes:name/key"),
    }
    assert resolve(secrets) == {"A": "from outside", "B": "from file", "C": "plain"}
    with refused("secret-kind-unsupported"):
        refuse_foreign(secrets, platform="local")
    refuse_foreign(secrets, platform="kubernetes", kinds=("kubernetes",))


@pytest.mark.parametrize("given", ["env:NOT_SET_ANYWHERE", "file:/nowhere/at/all"])
def test_a_secret_that_is_not_there_is_an_error(given: str) -> None:
    with pytest.raises(UsageError, match="secrets.KEY"):
        resolve({"KEY": parse_secret(given)})


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EVERSTEP_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def record(number: int, **changes: object) -> JobRecord:
    told = {"id": f"train-{number}", "name": "train", "platform": "local", "created_at": float(number), "folder": "/f"}
    return JobRecord(
        **{**told, "job": {}, "job_id": f"native.{number}", "runs": ((f"r{number}", f"run.{number}"),), **changes}
    )


def test_a_job_is_found_by_any_of_its_ids(home: Path) -> None:
    submitted.save(record(1))
    submitted.save(record(22))
    assert [each.id for each in submitted.load_all()] == ["train-22", "train-1"]
    for wanted in ("train-22", "native.22", "run.22", "train-2"):
        assert submitted.find(wanted) == record(22)
    assert oct((home / "submitted" / "train-1.json").stat().st_mode & 0o777) == "0o600"
    assert os.stat(home / "submitted").st_mode & 0o077 == 0


def test_a_name_means_the_newest_job_of_that_name(home: Path) -> None:
    submitted.save(record(1))
    submitted.save(record(12))
    assert submitted.find("train").id == "train-12"
    submitted.save(record(12, end=("succeeded", "")))
    assert submitted.find("train").id == "train-1", "the only one that is not over"
    submitted.save(record(1, end=("failed", "")))
    assert submitted.find("train").id == "train-12"


def test_an_id_that_is_none_or_several_is_an_error(home: Path) -> None:
    submitted.save(record(1))
    submitted.save(record(12))
    with refused("job-id-ambiguous"):
        submitted.find("trai")
    with refused("job-record-missing"):
        submitted.find("other")


def test_a_job_that_could_not_be_remembered_is_not_submitted(home: Path) -> None:
    home.write_text("a file")
    with refused("job-records-not-writable"):
        submitted.check_records()


def test_what_checkpoints_remember_of_a_job_is_no_record(home: Path, tmp_path: Path) -> None:
    index.remember_job(tmp_path / "checkpoints")
    submitted.save(record(1))
    assert submitted.load_all() == [record(1)]


def test_a_damaged_record_is_named_and_hides_no_other(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    submitted.save(record(1))
    (home / "submitted" / "bad.json").write_text("{}")
    assert [each.id for each in submitted.load_all()] == ["train-1"]
    assert "bad.json is not a job record" in caplog.text


def test_of_several_jobs_of_a_name_the_one_that_is_not_over_is_meant(home: Path) -> None:
    submitted.save(record(1, end=("succeeded", "done")))
    submitted.save(record(2))
    submitted.save(record(3, end=("failed", "died")))
    assert submitted.find("train").id == "train-2"
