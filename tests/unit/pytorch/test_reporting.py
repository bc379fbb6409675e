"""What a fit leaves behind and shows: lines of JSON, TensorBoard's files, a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from everstep.pytorch.display import FitSpeed, FitStatus, clock, number, parts_of
from everstep.pytorch.metric_records import RecordFile, make_record
from everstep.pytorch.progress import BatchProgress
from everstep.pytorch.reporting import Reporter
from everstep.pytorch.train_units import Batch, Epoch, Record, Seconds

ROOT = Path(__file__).parents[3]
UUID = "7d2f0f6a-5f5e-5c7b-9f4e-0d3c2b1a0987"


def reporter(folder, is_chief=lambda: True, **more):
    given = {"length": Batch(100), "length_batches": 100, "has_tensorboard": False, "metric": "accuracy"}
    return Reporter(folder=folder, is_chief=is_chief, job_metrics=None, **(given | more))


def lines_of(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines() if line]


def at(batches):
    return BatchProgress(batches=batches, epochs=batches // 50, records=batches * 64)


# --- metrics.jsonl ---


def test_a_fit_is_told_line_by_line(tmp_path):
    told = []
    fit = Reporter(
        folder=tmp_path, is_chief=lambda: True, length=Batch(100), length_batches=100, has_tensorboard=False,
        metric="accuracy", job_metrics=told.append,
    )  # fmt: skip
    fit.began(at(0), None)
    fit.batch(at(50), {"loss": 0.5}, 64)
    fit.trained(at(50), {"loss": torch.tensor(0.5)}, [{"loss": 0.4}, {"loss": 0.6}])
    fit.validated(at(50), {"accuracy": 0.9, "confusion": torch.eye(2)}, True)
    fit.saved(UUID, 50, "/somewhere")
    fit.saved(UUID, 25, "/late")
    fit.ended(at(100), "reached Batch(100)", (UUID, 50, 0.9))
    fit.close()
    fit.close()

    begin, training, validation, saved, late, end = lines_of(tmp_path)
    assert (begin["kind"], begin["resumed_from"]) == ("begin", None)
    assert training["metrics"] == {"loss": 0.5}
    assert (training["batches"], training["epochs"], training["records"]) == (50, 1, 3200)
    assert training["batch_metrics"] == [{"loss": 0.4}, {"loss": 0.6}]
    assert validation["metrics"] == {"accuracy": 0.9, "confusion": [[1.0, 0.0], [0.0, 1.0]]}
    assert (saved["uuid"], saved["batches"], saved["epochs"], saved["where"]) == (UUID, 50, 1, "/somewhere")
    assert (late["batches"], late["epochs"]) == (25, None)  # what is not known is not made up
    assert (end["reason"], end["best"]) == ("reached Batch(100)", {"uuid": UUID, "batches": 50, "value": 0.9})
    assert [each.kind for each in told] == [each["kind"] for each in lines_of(tmp_path)]
    assert (told[1].values, told[1].details) == ({"loss": 0.5, "epochs": 1, "records": 3200}, {})
    assert (told[2].values, told[2].details) == (
        {"accuracy": 0.9}, {"confusion": [[1.0, 0.0], [0.0, 1.0]], "is_best": True},
    )  # fmt: skip
    assert told[5].details == {
        "reason": "reached Batch(100)", "best": {"uuid": UUID, "batches": 50, "value": 0.9}, "epochs": 2,
        "records": 6400,
    }  # fmt: skip
    assert stat.S_IMODE((tmp_path / "metrics.jsonl").stat().st_mode) == 0o600


def test_a_number_that_is_none_is_null_and_named(tmp_path):
    def strict(text):
        raise AssertionError(f"{text} is not JSON")

    fit = reporter(tmp_path)
    fit.trained(at(1), {"loss": float("nan"), "norms": [1.0, float("inf")], "good": 1.0}, None)
    fit.close()
    (line,) = [
        json.loads(each, parse_constant=strict) for each in (tmp_path / "metrics.jsonl").read_text().splitlines()
    ]
    assert line["metrics"] == {"loss": None, "norms": [1.0, None], "good": 1.0}
    assert line["nonfinite"] == ["loss", "norms"]


def test_after_a_torn_line_the_next_one_is_whole(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"kind":"training","batches":1}\n{"kind":"trai')
    file = RecordFile(path)
    file.append(make_record("training", at(2)))
    file.append(make_record("training", at(3)))
    file.close()
    first, torn, *rest = path.read_text().splitlines()
    assert torn == '{"kind":"trai'
    assert [json.loads(each)["batches"] for each in (first, *rest)] == [1, 2, 3]


def test_the_chief_of_the_moment_writes_and_the_next_one_goes_on(tmp_path, capfd):
    chief = "a"
    first, second = reporter(tmp_path, lambda: chief == "a"), reporter(tmp_path, lambda: chief == "b")
    for fit in (first, second):
        fit.began(at(0), None)
        fit.trained(at(10), {"loss": 0.5}, None)
    chief = "b"
    for fit in (first, second):
        fit.trained(at(20), {"loss": 0.4}, None)
        fit.close()
    assert [(each["kind"], each["batches"]) for each in lines_of(tmp_path)] == [
        ("begin", 0), ("training", 10), ("training", 20),
    ]  # fmt: skip
    assert len(re.findall("batch ", capfd.readouterr().err)) == 2


def test_a_disk_that_is_full_is_said_once_and_counted(tmp_path, caplog):
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    fit = reporter(tmp_path)
    for batch in range(3):
        fit.trained(at(batch), {}, None)
    fit.close()
    assert [each.getMessage() for each in caplog.records] == [
        "metrics cannot be written: [Errno 28] No space left on device",
        "3 lines of metrics were not written",
    ]


# --- TensorBoard ---


def scalars(folder, tag):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return (
        [(each.step, round(each.value, 4)) for each in events.Scalars(tag)] if tag in events.Tags()["scalars"] else []
    )


def test_scalars_are_drawn_by_batches(tmp_path):
    fit = reporter(tmp_path, has_tensorboard=True)
    fit.began(at(0), None)
    fit.trained(at(10), {"loss": 0.5, "confusion": [1, 2]}, None)
    fit.validated(at(10), {"loss": torch.tensor(0.25)}, True)
    fit.get_writer().add_scalar("mine", 7.0, 3)
    fit.close()
    assert scalars(tmp_path, "training/loss") == [(10, 0.5)]
    assert scalars(tmp_path, "validation/loss") == [(10, 0.25)]
    assert scalars(tmp_path, "mine") == [(3, 7.0)]


def test_a_run_that_goes_on_does_not_draw_over_later_steps(tmp_path):
    first = reporter(tmp_path, has_tensorboard=True)
    first.began(at(0), None)
    for batch in (10, 20, 30):
        first.trained(at(batch), {"loss": 0.5}, None)
    first.close()
    second = reporter(tmp_path, has_tensorboard=True)
    second.began(at(10), UUID)
    second.trained(at(40), {"loss": 0.1}, None)
    second.close()
    assert scalars(tmp_path, "training/loss") == [(10, 0.5), (40, 0.1)]


def test_a_chief_that_takes_over_keeps_what_was_drawn(tmp_path):
    chief = "a"
    first = reporter(tmp_path, lambda: chief == "a", has_tensorboard=True)
    second = reporter(tmp_path, lambda: chief == "b", has_tensorboard=True)
    for fit in (first, second):
        fit.began(at(0), None)
        fit.trained(at(10), {"loss": 0.5}, None)
        fit.get_writer().add_scalar("mine", 1.0, 10)
    first.close()
    chief = "b"
    second.trained(at(20), {"loss": 0.4}, None)
    second.close()
    assert scalars(tmp_path, "training/loss") == [(10, 0.5), (20, 0.4)]
    assert scalars(tmp_path, "mine") == [(10, 1.0)]


def test_without_it_nothing_is_written(tmp_path):
    fit = reporter(tmp_path, has_tensorboard=False)
    fit.began(at(0), None)
    fit.trained(at(10), {"loss": 0.5}, None)
    fit.get_writer().add_scalar("mine", 1.0, 10)
    fit.close()
    assert not (tmp_path / "tensorboard").exists()


def test_a_missing_package_is_one_warning(tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)  # as if it were not installed
    fit = reporter(tmp_path, has_tensorboard=True)
    fit.began(at(0), None)
    fit.trained(at(10), {"loss": 0.5}, None)
    fit.get_writer().add_histogram("mine", [1.0], 10)
    fit.close()
    (said,) = caplog.records
    assert "pip install tensorboard" in said.getMessage()
    assert len(lines_of(tmp_path)) == 2


def test_a_method_that_a_writer_does_not_have_is_an_error(tmp_path):
    with pytest.raises(AttributeError, match="no method 'add_scalr'"):
        reporter(tmp_path, has_tensorboard=True).get_writer().add_scalr("x", 1.0)


# --- numbers ---


def test_neither_validating_nor_saving_counts_as_training():
    pace, now = FitSpeed(), 100.0
    pace.skip_to(now)
    for _ in range(10):
        now += 0.1
        pace.batch(now, 64)
    assert pace.samples_per_s == pytest.approx(640)
    now += 1000.0
    pace.skip_to(now)
    for _ in range(10):
        now += 0.1
        pace.batch(now, 64)
    assert pace.samples_per_s == pytest.approx(640)
    assert pace.remaining_s(Batch(120), 120, at(20)) == pytest.approx(10.0)


def test_the_pace_is_that_of_the_last_seconds():
    pace, now = FitSpeed(), 0.0
    pace.skip_to(now)
    for num_samples in [10] * 500 + [20] * 500:
        now += 0.1
        pace.batch(now, num_samples)
    assert pace.samples_per_s == pytest.approx(200)


@pytest.mark.parametrize(
    ("length", "length_batches", "expected"),
    [
        (Batch(100), 100, 5.0),
        (Epoch(2), 100, 5.0),
        (Epoch(2), None, None),
        (Record(6400), None, 5.0),
        (Seconds(8), None, 3.0),
    ],
)
def test_when_it_will_end(length, length_batches, expected):
    pace = FitSpeed()
    assert pace.remaining_s(Batch(10), 10, BatchProgress()) is None
    pace.skip_to(0.0)
    for batch in range(1, 51):
        pace.batch(batch * 0.1, 64)
    found = pace.remaining_s(length, length_batches, BatchProgress(batches=50, records=3200, seconds=5.0))
    assert found == (None if expected is None else pytest.approx(expected))


def test_how_it_reads():
    status = FitStatus(
        progress=at(100), length=Epoch(3), length_batches=937, loss="loss 0.4213", samples_per_s=1234.4, eta_s=70.2
    )
    assert " | ".join(parts_of(status)) == ("batch 100/937 | epoch 2/3 | loss 0.4213 | 1,234 samples/s | eta 0:01:10")
    assert [number(each) for each in (0.42131, 12.345, 3.2e-5, 5.0, float("nan"))] == [
        "0.4213", "12.35", "3.20e-05", "5", "nan",
    ]  # fmt: skip
    assert [clock(each) for each in (0.4, 3661, 90061)] == ["0:00:00", "1:01:01", "1d 1:01:01"]


# --- what a person sees ---

SCRIPT = """
import logging, sys
from pathlib import Path
logging.basicConfig(format="log: %(message)s")
from everstep.pytorch.reporting import Reporter
from everstep.pytorch.train_units import Batch
from everstep.pytorch.progress import BatchProgress
fit = Reporter(folder=Path(sys.argv[1]), is_chief=lambda: True, length=Batch(9), length_batches=9,
               has_tensorboard=False, metric="accuracy", job_metrics=None)
fit.began(BatchProgress(), None)
for batch in range(1, 9):
    fit.batch(BatchProgress(batches=batch), {"loss": 1 / batch}, 64)
print("printed by the script")
logging.warning("logged by the script")
with fit.aside("validating"):
    pass
fit.validated(BatchProgress(batches=8), {"accuracy": 0.9}, True)
fit.saved("UUID", 8, "/a/long/path/" + "x" * 100)
with fit.aside("saving"):
    pass
if "die" in sys.argv:
    import os, signal
    os.kill(os.getpid(), signal.SIGKILL)
fit.ended(BatchProgress(batches=9), "reached Batch(9)", ("UUID", 8, 0.9))
fit.close()
print("after")
logging.warning("after")
"""


def on_a_terminal(folder, *arguments):
    """Its exit code and all that a terminal was sent."""
    ours, its = pty.openpty()
    command = [sys.executable, "-c", SCRIPT, folder, *arguments]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "100"}
    child = subprocess.Popen(command, stdin=its, stdout=its, stderr=its, env=environment)
    os.close(its)
    parts = []
    while True:
        try:
            part = os.read(ours, 1 << 16)
        except OSError:  # all have closed it
            break
        if not part:
            break
        parts.append(part)
    os.close(ours)
    return child.wait(60), b"".join(parts).decode()


def screen(text):
    """What a terminal shows in the end, for the few commands that are used."""
    rows, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[[?\d;]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", text):
        if part == "\n":
            row += 1
            rows += [""] * (row + 1 - len(rows))
        elif part == "\r":
            column = 0
        elif part == "\x1b[2K":
            rows[row] = ""
        elif found := re.fullmatch(r"\x1b\[(\d*)A", part):
            row -= int(found[1] or 1)
        elif not part.startswith("\x1b"):
            rows[row] = rows[row][:column].ljust(column) + part + rows[row][column + len(part) :]
            column += len(part)
    return [each for each in rows if each]


def test_on_a_terminal_the_bar_stays_below_what_is_printed(tmp_path):
    code, text = on_a_terminal(tmp_path)
    assert code == 0
    assert "━" in text and "validating" in text
    assert screen(text) == [
        "printed by the script",
        "log: logged by the script",
        "validation at batch 8: accuracy 0.9000, the best so far",
        "checkpoint UUID of batch 8: /a/long/path/" + "x" * 100,
        "reached Batch(9): 9 batches, 0 epochs, loss 0.1250",
        "best checkpoint (accuracy 0.9000): UUID of batch 8: /a/long/path/" + "x" * 100,
        "after",
        "log: after",
    ]


def test_killed_it_leaves_the_bar_and_a_cursor(tmp_path):
    code, text = on_a_terminal(tmp_path, "die")
    assert code == -signal.SIGKILL
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")
    bar, validation, best = screen(text)[-3:]
    assert re.search(r"89%  batch 8/9 · epoch 0 · loss 0\.1250 · [\d,.]+ samples/s · saving", bar)
    assert validation.startswith("validation at batch 8")
    assert best.startswith("best checkpoint: UUID of batch 8: /a/long") and len(best) <= 100


def test_elsewhere_there_are_plain_lines(tmp_path):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, tmp_path], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "printed by the script\nafter\n"
    first, *rest = done.stderr.splitlines()
    assert re.fullmatch(r"batch 1/9 \| epoch 0 \| loss 1 \| [\d,.]+ samples/s \| eta \d:\d\d:\d\d", first)
    assert [line for line in rest if line.startswith("validation at batch 8")]
    assert not re.search(r"\x1b|━", done.stderr)


def test_a_reader_that_went_away_ends_nothing(tmp_path):
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-c", SCRIPT.replace("logging.warning", "str"), tmp_path]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, stderr=writing, stdout=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (done.returncode, done.stdout) == (0, "printed by the script\nafter\n")
    assert lines_of(tmp_path)[-1]["kind"] == "end"
