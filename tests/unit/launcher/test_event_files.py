"""TensorBoard files of workers: what is read, kept and said, whatever is in them. A writer that knows only the format
makes them; a list stands in for the coordinator."""

from __future__ import annotations

import math
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from everstep.launcher import event_files
from everstep.launcher.event_files import EventFiles
from everstep.record.event_file import _masked_crc
from everstep.storage import private_file
from everstep.wire import MetricReports

PID = 4242


class Kept:
    """What a coordinator would keep."""

    def __init__(self) -> None:
        self.steps, self.names = list[int](), set[str]()

    def report_metrics(self, _worker: str, some: MetricReports) -> None:
        self.names |= {name for each in some.reports for name in each.values}
        self.steps += [each.step for each in some.reports]


def record(step: int, wall_time: float) -> bytes:
    value = b"\x0a\x04loss" + b"\x15" + struct.pack("<f", 0.5)
    summary = bytes([0x0A, len(value)]) + value
    event = b"\x09" + struct.pack("<d", wall_time) + bytes([0x10, step, 0x2A, len(summary)]) + summary
    length = struct.pack("<Q", len(event))
    return length + struct.pack("<I", _masked_crc(length)) + event + struct.pack("<I", _masked_crc(event))


def event_file(folder: Path, *records: bytes, number: int = 0) -> Path:
    path = folder / f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{PID}.{number}"
    folder.mkdir(exist_ok=True)
    path.write_bytes(b"".join(records))
    return path


@pytest.fixture
def kept() -> Kept:
    return Kept()


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def reading(kept: Kept, said: list[str], tmp_path: Path) -> Callable[[], EventFiles]:
    def reading() -> EventFiles:
        connect: Any = lambda: nullcontext(kept)  # noqa: E731
        return EventFiles(connect, root=tmp_path / "board", directory=tmp_path, say=said.append)

    return reading


def test_the_state_is_not_changed_while_it_is_written(
    reading: Callable[[], EventFiles], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_end, written = threading.Event(), threading.Event(), list[int]()

    def write_slowly(_path: Path, told: dict[str, Any]) -> None:
        if not begun.is_set():
            begun.set()
            assert may_end.wait(60)
        written.append(len(told["workers"]))

    monkeypatch.setattr(private_file, "write_json", write_slowly)
    files = reading()
    first = threading.Thread(target=files.follow, args=("w0", PID), kwargs={"rank": 0})
    first.start()
    assert begun.wait(60)
    second = threading.Thread(target=files.follow, args=("w1", PID + 1), kwargs={"rank": 1})
    second.start()
    second.join(0.2)
    may_end.set()
    first.join(60)
    second.join(60)
    assert written == [1, 2]


def test_values_with_a_time_that_is_none_are_left_out_and_counted(
    reading: Callable[[], EventFiles], kept: Kept, said: list[str], tmp_path: Path
) -> None:
    times = [1.0, -1.0, math.nan, math.inf, 2.0]
    event_file(tmp_path / "board", *(record(step, each) for step, each in enumerate(times)))
    with reading() as files:
        files.follow("w0", PID, rank=0)
        files.close(60.0)
    assert kept.steps == [0, 4]
    assert said == ["3 values from TensorBoard files were not kept: names, steps or times out of bounds"]


def test_a_folder_whose_name_is_not_unicode_is_read(
    reading: Callable[[], EventFiles], kept: Kept, tmp_path: Path
) -> None:
    event_file(tmp_path / "board", record(1, 1.0))
    event_file(tmp_path / "board" / "\udcff", record(2, 1.0), number=1)
    with reading() as files:
        files.follow("w0", PID, rank=0)
        files.close(60.0)
    assert kept.names == {"loss", r"\udcff/loss"}


def test_known_files_are_read_before_a_slow_walk_which_is_said(
    reading: Callable[[], EventFiles], kept: Kept, said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = event_file(tmp_path / "board", record(1, 1.0))
    with reading() as files:
        files.follow("w0", PID, rank=0)
        files.close(60.0)
    is_walking, may_end = threading.Event(), threading.Event()

    def walk_slowly(_root: Path) -> list[Path]:
        is_walking.set()
        assert may_end.wait(60)
        return []

    monkeypatch.setattr(event_files, "_event_files", walk_slowly)
    path.write_bytes(record(1, 1.0) + record(2, 2.0))
    with reading() as files:  # the next agent of this folder
        files.close(0.2)
        assert is_walking.wait(60)
        may_end.set()
    assert kept.steps == [1, 2]
    assert said == [
        f"the last values in TensorBoard files may be missing: reading in {tmp_path / 'board'} took more than 0.2 s"
    ]


def test_a_last_look_that_fails_is_said(said: list[str], tmp_path: Path) -> None:
    def refuse() -> Any:
        raise ConnectionError("nobody there")

    event_file(tmp_path / "board", record(1, 1.0))
    with EventFiles(refuse, root=tmp_path / "board", directory=tmp_path, say=said.append) as files:
        files.follow("w0", PID, rank=0)
        files.close(60.0)
    assert said == ["the last values in TensorBoard files may be missing: nobody there"]
