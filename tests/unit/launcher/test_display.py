"""Logs, events and what a terminal shows of them."""

from __future__ import annotations

import io
import json
import os
import time
from pathlib import Path

import pytest

from everstep.ipc.progress_page import ProgressPage
from everstep.launcher.console import Console
from everstep.launcher.display import JobDisplay
from everstep.launcher.logs import FilteredCopy, Follower, tail
from everstep.launcher.shown_streams import BOTH, STDERR, STDOUT, Shown, ShownStreams
from everstep.launcher.worker_files import WorkerFiles
from everstep.testing.tape import Tape, is_match
from everstep.wire import OUTSIDE


def test_tail(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert tail(log) == []
    log.write_text("".join(f"line {number}\n" for number in range(50_000)))
    assert tail(log, 2) == ["line 49998", "line 49999"]


def test_a_follower_shows_whole_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"one\ntw")
    follower = Follower(log)
    assert follower.new_lines() == ["one"]
    with log.open("ab") as file:
        file.write(b"o\n10%\r50%\r100%\nthr")
    assert follower.new_lines() == ["two", "100%"]
    assert follower.new_lines() == []
    assert follower.last_lines() == ["thr"]


def test_the_tape_reads_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "events"
    tape = Tape(path)
    assert tape.read() == []
    path.write_text(json.dumps({"event": "a", "step": 3}) + '\n{"event": "b"')
    assert tape.read() == [{"event": "a", "step": 3}]
    with path.open("a") as file:
        file.write("}\n")
    assert [event["event"] for event in tape.read()] == ["a", "b"]
    assert is_match(tape.read()[0], "a", {"step": 3})
    assert is_match(tape.read()[0], "a", {"step": lambda step: step > 2})
    assert not is_match(tape.read()[1], "b", {"step": 3})


class Terminal(io.TextIOWrapper):
    def __init__(self, encoding: str = "utf-8", *, is_terminal: bool = True) -> None:
        self._bytes = io.BytesIO()
        super().__init__(self._bytes, encoding=encoding)
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal

    @property
    def text(self) -> str:
        return self._bytes.getvalue().decode(self.encoding)


def write_events(path: Path, *events: dict[str, object]) -> None:
    with path.open("a") as file:
        file.writelines(json.dumps(event) + "\n" for event in events)


def files_with(directory: Path, *, stdout: str = "", stderr: str = "") -> WorkerFiles:
    files = WorkerFiles(directory=directory)
    files.make(attempt=0, local_rank=0)
    files.stdout.write_text(stdout)
    files.stderr.write_text(stderr)
    return files


def test_a_workers_files_are_its_own_and_found_where_torchrun_has_them(tmp_path: Path) -> None:
    files = files_with(tmp_path / "w3", stdout="hello")
    assert (tmp_path / "attempt_0" / "0" / "stdout.log").read_text() == "hello"
    assert files.directory.stat().st_mode & 0o777 == 0o700
    later = WorkerFiles(directory=tmp_path / "w4")
    later.make(attempt=0, local_rank=0)
    assert (tmp_path / "attempt_0" / "0").resolve() == later.directory


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"message": {"message": "ValueError: x", "extraInfo": {}}}', "ValueError: x"),
        ('{"message": "killed"}', "killed"),
        ("{", ""),
        ("[]", ""),
        ("{}", ""),
    ],
)
def test_the_error_file(text: str, message: str, tmp_path: Path) -> None:
    files = WorkerFiles(directory=tmp_path)
    assert files.error_message() == ""
    files.error.write_text(text)
    assert files.error_message() == message


@pytest.mark.parametrize(
    ("shown", "streams_of_0", "streams_of_1"),
    [
        (Shown(), {STDOUT, STDERR}, {STDOUT, STDERR}),
        (Shown(redirects=ShownStreams(of_all=STDOUT)), {STDERR}, {STDERR}),
        (Shown(redirects=ShownStreams(of_all=BOTH), tee=ShownStreams(of_all=STDERR)), {STDERR}, {STDERR}),
        (Shown(redirects=ShownStreams(by_rank={1: BOTH})), {STDOUT, STDERR}, set()),
        (Shown(redirects=ShownStreams(of_all=BOTH), tee=ShownStreams(by_rank={0: STDOUT})), {STDOUT}, set()),
        (Shown(local_ranks=frozenset({1})), set(), {STDOUT, STDERR}),
        (Shown(is_quiet=True), set(), set()),
    ],
)
def test_which_streams_are_shown(shown: Shown, streams_of_0: set[int], streams_of_1: set[int]) -> None:
    for local_rank, streams in enumerate((streams_of_0, streams_of_1)):
        assert {stream for stream in (STDOUT, STDERR) if shown.has(local_rank, stream)} == streams


def test_the_display_tells_output_and_events(tmp_path: Path) -> None:
    events = tmp_path / "events"
    write_events(events, {"event": "worker.lost", "job": "j", "worker": "w9", "reason": "of an earlier run"})
    out, err = Terminal(is_terminal=False), Terminal(is_terminal=False)
    copies = {STDERR: FilteredCopy(tmp_path / "filtered", ["nois"])}
    with JobDisplay(Console(out, err), copies=copies) as display:
        display.follow_events(events)
        display.follow("w0", 0, files_with(tmp_path / "w0", stdout="hello\nlast", stderr="noise\n"), lambda: True)
        display.say("that is all")
        write_events(
            events,
            {
                "event": "generation.formed",
                "job": "j",
                "generation": 1,
                "members": ["w1", "w0"],
                "reason": "generation 1 formed by w1, w0",
            },
            {"event": "generation.formed", "generation": 1, "rank": 0},
            {"event": "regroup.settled", "generation": 1, "rank": 0, "size": 2, "step": 0},
            {"event": "regroup.settled", "generation": 1, "rank": 1, "size": 2, "step": 0},
            {"event": "step.committed", "step": 1, "generation": 1, "t": 10.0},
            {"event": "step.committed", "step": 2, "generation": 1, "t": 12.5},
            {"event": "worker.lost", "job": "j", "worker": "w1", "reason": "silent for 3.0 s"},
            {"event": "generation.closed", "job": "j", "generation": 1, "members": [], "reason": "w1 is lost"},
        )
        with events.open("a") as file:
            file.write("no event\n")
    assert out.text.splitlines() == ["[w0] hello", "[w0] last"]
    assert sorted(err.text.splitlines()) == [
        "[w0] noise",
        "everstep: generation 1 closed: w1 is lost",
        "everstep: generation 1 formed by w1, w0",
        "everstep: generation 1 trains with 2 workers from step 0",
        "everstep: that is all",
        "everstep: w1 is lost: silent for 3.0 s",
    ]
    assert (tmp_path / "filtered").read_text() == "[w0] noise\n"
    assert display.good_s == 2.5


def test_a_terminal_gets_a_progress_line_that_is_wiped_at_the_end(tmp_path: Path) -> None:
    files = files_with(tmp_path / "w0")
    board = ProgressPage(files.board)
    err = Terminal()
    board.write(step=13, micro_batch=-1, phase=OUTSIDE)
    with JobDisplay(Console(Terminal(), err)) as display:
        display.follow("w0", 0, files, lambda: True)
        deadline = time.monotonic() + 60.0
        while "step 13 · w0 · 0:" not in err.text:
            assert time.monotonic() < deadline
            time.sleep(0.005)
    board.close()
    assert err.text.endswith("\r\x1b[2K")
    assert display.num_steps == 13


def test_nothing_is_printed_into_the_progress_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "12")
    out, err = Terminal(), Terminal()
    console = Console(out, err)
    console.draw("123456789012345")
    console.print(out=["to stdout"], err=["to stderr"])
    assert out.text == "to stdout\n"
    assert err.text == "\r\x1b[2K12345678901\r\x1b[2Kto stderr\n\r\x1b[2K12345678901"


def test_a_character_that_the_terminal_lacks_is_replaced() -> None:
    out, err = Terminal("ascii"), Terminal("ascii")
    console = Console(out, err)
    console.print(out=["na\u00efve"])
    assert out.text == "na?ve\n"
    assert console.dot == "|"


def test_a_reader_that_went_away_ends_nothing() -> None:
    read, write = os.pipe()
    os.close(read)
    with open(write, "w") as gone:
        console = Console(gone, Terminal())
        console.print(out=["one"])
        console.print(out=["two"])


def test_a_full_disk_ends_nothing(tmp_path: Path) -> None:
    """Under the output of `nohup everstep run`, and under the copy of what the workers print."""
    with open("/dev/full", "w") as full:
        with JobDisplay(Console(full, Terminal()), copies={STDOUT: FilteredCopy(Path("/dev/full"), ["o"])}) as display:
            display.follow("w0", 0, files_with(tmp_path / "w0", stdout="one\n"), lambda: True)
            display.follow_events(Path("/proc/events.jsonl"))  # where no file can be made
            display.flush()
            assert display._thread.is_alive()
            display.say("two")
        Console(full, full).print(out=["three"])


def test_what_was_dropped_for_want_of_room_does_not_come_later(tmp_path: Path) -> None:
    with open(tmp_path / "log", "w") as out:
        there, full = os.dup(out.fileno()), os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, out.fileno())
        Console(out, Terminal()).print(out=["dropped"])
        os.dup2(there, out.fileno())
        Console(out, Terminal()).print(out=["written"])
        for each in (there, full):
            os.close(each)
    assert (tmp_path / "log").read_text() == "written\n"


def test_an_event_that_nobody_can_read_ends_nothing(tmp_path: Path) -> None:
    events, err = tmp_path / "events", Terminal(is_terminal=False)
    events.touch()
    with JobDisplay(Console(Terminal(is_terminal=False), err)) as display:
        display.follow_events(events)
        write_events(events, {"no": "event"})
        display.flush()
        display.say("that is all")
    assert err.text == "everstep: that is all\n"


def test_a_run_that_goes_on_counts_the_steps_that_it_has_done_itself(tmp_path: Path) -> None:
    files, events = files_with(tmp_path / "w0"), tmp_path / "events"
    board = ProgressPage(files.board)
    board.write(step=13, micro_batch=-1, phase=OUTSIDE)
    with JobDisplay(Console(Terminal(is_terminal=False), Terminal(is_terminal=False))) as display:
        display.follow_events(events)
        display.follow("w0", 0, files, lambda: True)
        write_events(events, {"event": "regroup.settled", "generation": 2, "rank": 0, "size": 1, "step": 10})
        display.flush()
        assert (display.num_steps, display.num_steps_done) == (13, 3)
    board.close()
