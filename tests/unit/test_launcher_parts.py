"""What the launcher decides and shows, without any process."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from everstep.board import Board
from everstep.errors import UsageError
from everstep.launcher.display import Display
from everstep.launcher.logs import Follower, tail
from everstep.launcher.node import NodeSpec, Place, num_processes, worker_command, worker_environment
from everstep.launcher.verdict import JobEnd, WorkerEnd, decide_replacement, decide_verdict, failure_report
from everstep.process import Exit
from everstep.testing.tape import Tape, is_match
from everstep.wire import COMPUTING, OUTSIDE

GOOD, BAD, KILLED = Exit(code=0), Exit(code=1), Exit(code=-9)


# --- decisions ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ended", "num_restarts", "is_ending", "is_replaced", "reason"),
    [
        (GOOD, 0, False, False, "it finished"),
        (KILLED, 0, False, True, "replaced, restart 1 of 2"),
        (BAD, 1, False, True, "replaced, restart 2 of 2"),
        (BAD, 2, False, False, "not replaced: 2 of 2 restarts are used"),
        (KILLED, 0, True, False, "not replaced: the job is ending"),
    ],
)
def test_who_is_replaced(ended: Exit, num_restarts: int, is_ending: bool, is_replaced: bool, reason: str) -> None:
    choice = decide_replacement(ended, num_restarts=num_restarts, max_restarts=2, is_ending=is_ending)
    assert (choice.is_replaced, choice.reason) == (is_replaced, reason)


def ends(*exits: Exit) -> list[WorkerEnd]:
    return [WorkerEnd(worker=f"w{number}", exit=exit) for number, exit in enumerate(exits)]


@pytest.mark.parametrize(
    ("exits", "exit_code", "first"),
    [
        ([GOOD, GOOD], 0, None),
        ([KILLED, GOOD], 0, None),  # the job went on without it
        ([GOOD, BAD], 1, "w1"),
        ([GOOD, KILLED, BAD], 1, "w1"),
        ([BAD, BAD], 1, "w0"),
        ([], 1, None),
    ],
)
def test_how_a_job_went(exits: list[Exit], exit_code: int, first: str | None) -> None:
    verdict = decide_verdict(ends(*exits), JobEnd(), signal_number=None)
    assert verdict.exit_code == exit_code
    assert (verdict.first_failure.worker if verdict.first_failure else None) == first


def test_who_came_too_late_for_a_finished_job_did_not_fail() -> None:
    late = WorkerEnd(worker="w2", exit=BAD, step=0)
    finished = WorkerEnd(worker="w0", exit=GOOD, step=9)
    assert decide_verdict([finished, late], JobEnd(is_finished=True), signal_number=None).exit_code == 0
    assert decide_verdict([late], JobEnd(is_finished=True), signal_number=None).exit_code == 0
    assert decide_verdict([late], JobEnd(), signal_number=None).exit_code == 1


def test_who_failed_after_the_last_step_did_fail() -> None:
    failed = WorkerEnd(worker="w1", exit=BAD, step=9)
    finished = WorkerEnd(worker="w0", exit=GOOD, step=9)
    assert decide_verdict([finished, failed], JobEnd(is_finished=True), signal_number=None).first_failure == failed


def test_a_death_that_was_survived_is_not_the_one_to_look_at() -> None:
    survived = WorkerEnd(worker="w1", exit=KILLED, step=3)
    others = [WorkerEnd(worker=worker, exit=BAD, step=9) for worker in ("w2", "w0")]
    assert decide_verdict([survived, *others], JobEnd(), signal_number=None).first_failure == others[0]


def test_a_stopped_job_failed_whatever_its_workers_returned() -> None:
    verdict = decide_verdict(ends(GOOD), JobEnd(stop_reason="leaf 3 killed 3 workers"), signal_number=None)
    assert verdict.exit_code == 1


def test_an_interrupted_job_ends_as_a_shell_would() -> None:
    assert decide_verdict(ends(BAD), JobEnd(), signal_number=2).exit_code == 130


def test_the_failure_report_names_worker_signal_step_and_leaf() -> None:
    end = WorkerEnd(worker="w1", exit=KILLED, step=7, leaf=3)
    verdict = decide_verdict([end], JobEnd(stop_reason="leaf 3 killed 3 workers"), signal_number=None)
    assert failure_report(verdict, ["one", "two"], "w1.log").splitlines() == [
        "the job failed: leaf 3 killed 3 workers",
        "first to fail: w1, killed by SIGKILL in leaf 3 after step 7",
        "last lines of w1.log:",
        "  | one",
        "  | two",
    ]


# --- environment ----------------------------------------------------------------------------------

NODE = NodeSpec(
    job="j",
    coordinator_url="http://c:1",
    token_file=Path("/t"),
    command=("true",),
    num_workers=2,
    directory=Path("/d"),
    agent="a",
    address="10.0.0.1",
)
PLACE = Place(worker="w5", local_rank=1, num_restarts=3, master_port=4567)


def test_workers_get_torchruns_names_and_ours() -> None:
    given = worker_environment(NODE, PLACE, {"HOME": "/h", "EVERSTEP_TOKEN": "secret"})
    assert (
        given.items()
        >= {
            "HOME": "/h",
            "RANK": "1",
            "LOCAL_RANK": "1",
            "WORLD_SIZE": "2",
            "MASTER_ADDR": "10.0.0.1",
            "MASTER_PORT": "4567",
            "TORCHELASTIC_RESTART_COUNT": "3",
            "OMP_NUM_THREADS": "1",
            "EVERSTEP_WORKER": "w5",
            "EVERSTEP_TOKEN_FILE": "/t",
            "EVERSTEP_EVENTS": "/d/events.jsonl",
            "EVERSTEP_BOARD": "/d/w5.board",
        }.items()
    )
    assert "EVERSTEP_TOKEN" not in given
    assert "EVERSTEP_ADDRESS" not in given


def test_what_the_user_set_is_kept() -> None:
    given = worker_environment(NODE, PLACE, {"OMP_NUM_THREADS": "4", "EVERSTEP_EVENTS": "/e"})
    assert given["OMP_NUM_THREADS"] == "4"
    assert given["EVERSTEP_EVENTS"] == "/e"


def test_commands() -> None:
    assert worker_command("train.py", ["-x"])[1:] == ["-u", "train.py", "-x"]
    assert worker_command("pkg.train", [], is_module=True)[1:] == ["-u", "-m", "pkg.train"]
    assert worker_command("bash", ["-c", "true"], is_program=True) == ["bash", "-c", "true"]


def test_nproc_per_node() -> None:
    assert num_processes("3") == 3
    assert num_processes("cpu") >= 1
    assert num_processes("auto") >= 1
    for wrong in ("0", "-1", "many", ""):
        with pytest.raises(UsageError, match="gives no worker"):
            num_processes(wrong)


# --- logs, events, display ------------------------------------------------------------------------


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


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def write_events(path: Path, *events: dict[str, object]) -> None:
    with path.open("a") as file:
        file.writelines(json.dumps(event) + "\n" for event in events)


def test_the_display_tells_output_and_events(tmp_path: Path) -> None:
    log, events = tmp_path / "w0.log", tmp_path / "events"
    log.write_text("hello\nunfinished")
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
        {"event": "step.committed", "step": 1},
        {"event": "worker.lost", "job": "j", "worker": "w1", "reason": "silent for 3.0 s"},
        {"event": "generation.closed", "job": "j", "generation": 1, "members": [], "reason": "w1 is lost"},
    )
    stream = io.StringIO()
    with Display(stream) as display:
        display.follow_events(events)
        display.follow("w0", log, tmp_path / "w0.board")
        display.say("that is all")
    lines = stream.getvalue().splitlines()
    assert [line for line in lines if line.startswith("[w0]")] == ["[w0] hello", "[w0] unfinished"]
    assert sorted(line for line in lines if line.startswith("everstep:")) == [
        "everstep: generation 1 closed: w1 is lost",
        "everstep: generation 1 formed by w1, w0",
        "everstep: generation 1 trains with 2 workers from step 0",
        "everstep: that is all",
        "everstep: w1 is lost: silent for 3.0 s",
    ]


def test_a_terminal_gets_a_progress_line_that_is_wiped_at_the_end(tmp_path: Path) -> None:
    board = Board(tmp_path / "w0.board")
    (tmp_path / "w0.log").touch()
    stream = Terminal()
    board.write(step=12, leaf=0, phase=COMPUTING)
    with Display(stream) as display:
        display.follow("w0", tmp_path / "w0.log", tmp_path / "w0.board")
        board.write(step=13, leaf=-1, phase=OUTSIDE)
    board.close()
    assert "step 13" in stream.getvalue()
    assert stream.getvalue().endswith("\r\x1b[2K")
    assert display.num_steps == 13
