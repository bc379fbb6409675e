"""Which folder a run writes to: continued, begun, shared by a job's workers, left to others."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

import everstep
from everstep.errors import UsageError
from everstep.pytorch.progress import BatchProgress
from everstep.pytorch.run_folder import KnownRun, choose_folder, decide_run, digest_of, mark_finished, plain_name
from everstep.pytorch.train_units import Batch, Epoch, Record, Seconds, TrainUnit
from lab.refused import refused


def number(base: Path, length: TrainUnit, **more: object) -> int:
    """That of the folder which a run gets that ends at once."""
    with closing(choose_folder(base, name="net", digest="abc123", length=length, **more)) as folder:  # type: ignore[arg-type]
        assert folder.path.parent == base / "net-abc123"
        return int(folder.path.name)


def finish(base: Path, run: int, *, batches: int = 0, epochs: int = 0, seconds: float = 0.0) -> None:
    progress = BatchProgress(batches=batches, epochs=epochs, records=32 * batches, seconds=seconds)
    mark_finished(base / "net-abc123" / str(run), progress, Batch(batches))


# --- the decision ---


DONE = BatchProgress(batches=10, epochs=1, records=320, seconds=59.5)


@pytest.mark.parametrize(
    ("newest", "length", "expected", "code"),
    [
        (None, Batch(10), 1, "first"),
        (KnownRun(number=3), Batch(10), 3, "unfinished"),
        (KnownRun(number=3, is_in_use=True), Batch(10), 4, "in-use"),
        (KnownRun(number=3, finished_at=DONE), Batch(10), 4, "finished"),
        (KnownRun(number=3, finished_at=DONE), Batch(20), 3, "too-short"),
        (KnownRun(number=3, finished_at=DONE), Epoch(2), 3, "too-short"),
        (KnownRun(number=3, finished_at=DONE), Epoch(1), 4, "finished"),
        (KnownRun(number=3, finished_at=DONE), Record(100), 4, "finished"),
        (KnownRun(number=3, finished_at=DONE), Seconds(60), 3, "too-short"),
    ],
)
def test_the_newest_run_is_continued_until_it_is_long_enough(
    newest: KnownRun | None, length: TrainUnit, expected: int, code: str
) -> None:
    decision = decide_run(newest, length)
    assert (decision.number, decision.code) == (expected, code)


# --- folders ---


def test_a_run_that_died_is_continued_and_one_that_finished_is_not(tmp_path: Path) -> None:
    assert number(tmp_path, Batch(100)) == 1
    assert number(tmp_path, Batch(100)) == 1
    finish(tmp_path, 1, batches=100)
    assert number(tmp_path, Batch(100)) == 2
    finish(tmp_path, 2, batches=100)
    assert number(tmp_path, Batch(200)) == 2
    finish(tmp_path, 2, batches=200)
    assert number(tmp_path, Batch(200)) == 3


def test_the_tenth_run_comes_after_the_ninth(tmp_path: Path) -> None:
    for run in range(1, 12):
        assert number(tmp_path, Batch(1)) == run
        finish(tmp_path, run, batches=1)


def test_other_names_and_other_hyperparameters_have_other_folders(tmp_path: Path) -> None:
    with (
        closing(choose_folder(tmp_path, name="net", digest=digest_of({"lr": 0.1}), length=Batch(1))) as first,
        closing(choose_folder(tmp_path, name="net", digest=digest_of({"lr": 0.2}), length=Batch(1))) as second,
        closing(choose_folder(tmp_path, name="my net/2", digest="abc123", length=Batch(1))) as third,
    ):
        assert first.path.parent != second.path.parent
        assert third.path == tmp_path / "my-net-2-abc123" / "1"


def test_folders_are_private(tmp_path: Path) -> None:
    with closing(choose_folder(tmp_path / "runs", name="net", digest="abc123", length=Batch(1), job="j")) as folder:
        for path in (tmp_path / "runs", folder.path.parent, folder.path, folder.path.parent / "jobs"):
            assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_the_mark_tells_how_far_the_run_came(tmp_path: Path) -> None:
    number(tmp_path, Batch(100))
    finish(tmp_path, 1, batches=100, epochs=2, seconds=1.5)
    told = json.loads((tmp_path / "net-abc123" / "1" / "run.json").read_text())
    assert (told["unit"], told["value"], told["length"]) == ("batches", 100, 100)
    assert told["progress"] == {"batches": 100, "epochs": 2, "records": 3200, "seconds": 1.5}


@pytest.mark.parametrize("text", ["", "[]", '{"progress": {"batches": "x"}}', '{"progress": {"leaps": 3}}'])
def test_a_mark_that_cannot_be_read_is_named(tmp_path: Path, text: str) -> None:
    number(tmp_path, Batch(100))
    (tmp_path / "net-abc123" / "1" / "run.json").write_text(text)
    with refused("run-record-unreadable", UsageError):
        number(tmp_path, Batch(100))


# --- several at once ---


def test_a_run_that_another_is_at_is_left_alone(tmp_path: Path) -> None:
    with closing(choose_folder(tmp_path, name="net", digest="abc123", length=Batch(100))) as first:
        assert number(tmp_path, Batch(100)) == 2
        assert first.path.name == "1"
    assert number(tmp_path, Batch(100)) == 2


HOLDER = """
import sys
from everstep.pytorch.run_folder import choose_folder
from everstep.pytorch.train_units import Batch
folder = choose_folder(sys.argv[1], name="net", digest="abc123", length=Batch(100))
print(folder.path.name, flush=True)
sys.stdin.read()
"""


def test_a_killed_process_lets_go_of_its_run(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, tmp_path],
        env=os.environ | {"PYTHONPATH": str(Path(everstep.__file__).parents[1])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "1\n"
        with closing(choose_folder(tmp_path, name="net", digest="other", length=Batch(100))) as other:
            assert other.path.name == "1"
        holder.kill()
        holder.wait()

    assert number(tmp_path, Batch(100)) == 1


def test_all_workers_of_a_job_get_the_same_folder(tmp_path: Path) -> None:
    def arrive(_: int) -> str:
        with closing(choose_folder(tmp_path, name="net", digest="abc123", length=Batch(100), job="job-7")) as folder:
            return folder.path.name

    with ThreadPoolExecutor(16) as pool:
        assert set(pool.map(arrive, range(64))) == {"1"}


def test_a_newcomer_gets_the_jobs_folder_though_the_run_has_finished(tmp_path: Path) -> None:
    assert number(tmp_path, Batch(100), job="job-7") == 1
    finish(tmp_path, 1, batches=100)

    assert number(tmp_path, Batch(100), job="job-7") == 1
    assert number(tmp_path, Batch(100), job="job-8") == 2
    assert number(tmp_path, Batch(100), job="job-7") == 1


def test_a_job_that_trains_twice_has_two_runs_for_newcomers_too(tmp_path: Path) -> None:
    assert number(tmp_path, Batch(100), job="job-7", nth=1) == 1
    finish(tmp_path, 1, batches=100)
    assert number(tmp_path, Batch(100), job="job-7", nth=2) == 2

    assert [number(tmp_path, Batch(100), job="job-7", nth=nth) for nth in (1, 2)] == [1, 2]


def test_another_job_goes_on_with_a_run_that_was_cut_short(tmp_path: Path) -> None:
    assert number(tmp_path, Batch(100), job="job-7") == 1
    assert number(tmp_path, Batch(100), job="job-8") == 1


def test_two_jobs_at_the_same_time_have_a_folder_each(tmp_path: Path) -> None:
    with closing(choose_folder(tmp_path, name="net", digest="abc123", length=Batch(100), job="job-7")):
        assert number(tmp_path, Batch(100), job="job-8") == 2
        assert number(tmp_path, Batch(100), job="job-7") == 1


def test_a_folder_that_somebody_has_deleted_is_not_continued(tmp_path: Path) -> None:
    assert number(tmp_path, Batch(100), job="job-7") == 1
    finish(tmp_path, 1, batches=100)
    assert number(tmp_path, Batch(100), job="job-7", nth=2) == 2
    for path in (tmp_path / "net-abc123" / "2").iterdir():
        path.unlink()
    (tmp_path / "net-abc123" / "2").rmdir()

    assert number(tmp_path, Batch(100), job="job-7", nth=2) == 2


# --- names ---


@pytest.mark.parametrize(("name", "plain"), [("net", "net"), ("a b/c", "a-b-c"), ("../x", "x"), ("n" * 99, "n" * 64)])
def test_names_become_names_of_folders(name: str, plain: str) -> None:
    assert plain_name(name) == plain


def test_a_name_of_signs_alone_is_refused() -> None:
    with refused("run-name-unusable", UsageError):
        plain_name("../..")


def test_the_digest_is_that_of_the_values_whatever_their_order() -> None:
    assert digest_of({"a": 1, "b": [2]}) == digest_of({"b": [2], "a": 1})
    assert digest_of({"a": 1}) != digest_of({"a": 2})
    assert digest_of(None) == digest_of({})
    assert digest_of({"f": object()}) == digest_of({"f": object()})
    assert len(digest_of({})) == 6
