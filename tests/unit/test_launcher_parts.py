"""What the launcher decides and shows, without any process."""

from __future__ import annotations

import io
import itertools
import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from everstep.board import Board
from everstep.errors import UsageError
from everstep.launcher.console import Console
from everstep.launcher.display import Display
from everstep.launcher.logs import FilteredCopy, Follower, tail
from everstep.launcher.machine import count_cpus, count_gpus, own_address
from everstep.launcher.node import NodeSpec, Place, worker_command, worker_environment
from everstep.launcher.progress import Goodput, Pace, Progress, clock, progress_line
from everstep.launcher.report import LastWords, failure_report, summary
from everstep.launcher.streams import BOTH, STDERR, STDOUT, Shown, Streams
from everstep.launcher.verdict import JobEnd, Verdict, WorkerEnd, decide_replacement, decide_verdict
from everstep.launcher.waiting import whom_we_wait_for
from everstep.launcher.worker_files import WorkerFiles
from everstep.process import Exit
from everstep.testing.tape import Tape, is_match
from everstep.wire import OUTSIDE, JobView, NodeView, WorkerView

GOOD, BAD, KILLED = Exit(code=0), Exit(code=1), Exit(code=-9)


# --- decisions ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ended", "is_ending", "is_regrouping", "is_replaced"),
    [
        (GOOD, False, True, False),
        (KILLED, False, True, True),
        (BAD, False, True, True),
        (KILLED, True, True, False),
        (KILLED, False, False, False),  # all are restarted together
    ],
)
def test_who_is_replaced(ended: Exit, is_ending: bool, is_regrouping: bool, is_replaced: bool) -> None:
    assert decide_replacement(ended, is_ending=is_ending, is_regrouping=is_regrouping).is_replaced == is_replaced


def ends(*exits: Exit) -> list[WorkerEnd]:
    return [WorkerEnd(worker=f"w{number}", exit=exit) for number, exit in enumerate(exits)]


@pytest.mark.parametrize(
    ("exits", "outlived", "exit_code", "first"),
    [
        ([GOOD, GOOD], "", 0, None),
        ([KILLED, GOOD], "w0", 0, None),  # the job went on without it
        ([GOOD, KILLED], "w1", 0, None),
        ([GOOD, KILLED], "", 1, "w1"),  # it was killed when all had agreed on the end
        ([GOOD, BAD], "", 1, "w1"),
        ([BAD, GOOD], "", 1, "w0"),
        ([GOOD, KILLED, BAD], "w1", 1, "w2"),
        ([BAD, BAD], "", 1, "w0"),
        ([], "", 1, None),
    ],
)
def test_how_a_job_went(exits: list[Exit], outlived: str, exit_code: int, first: str | None) -> None:
    verdict = decide_verdict(ends(*exits), JobEnd(outlived=frozenset({outlived})), signal_number=None)
    assert verdict.exit_code == exit_code
    assert (verdict.first_failure.worker if verdict.first_failure else None) == first


def in_any_order(*ends: WorkerEnd, outlived: str = "") -> Verdict:
    """How a finished job went, whatever was seen first."""
    job = JobEnd(is_finished=True, outlived=frozenset({outlived}))
    (verdict,) = {decide_verdict(order, job, signal_number=None) for order in itertools.permutations(ends)}
    return verdict


def test_who_came_too_late_for_a_finished_job_did_not_fail() -> None:
    late = WorkerEnd(worker="w2", exit=BAD, step=0)
    dismissed = WorkerEnd(worker="w3", exit=Exit(code=-15), was_asked=True)
    finished = WorkerEnd(worker="w0", exit=GOOD, step=9)
    assert in_any_order(finished, late, dismissed) == Verdict(exit_code=0, reason="finished")
    assert in_any_order(late).exit_code == 0
    assert decide_verdict([late], JobEnd(), signal_number=None).exit_code == 1


def test_who_failed_before_the_others_last_step_was_survived() -> None:
    finished = [WorkerEnd(worker=worker, exit=GOOD, step=9) for worker in ("w0", "w2")]
    for exit in (BAD, KILLED):
        failed = WorkerEnd(worker="w1", exit=exit, step=8)
        assert in_any_order(failed, *finished) == Verdict(exit_code=0, reason="finished", num_survived=1)


def test_who_failed_after_the_last_step_did_fail() -> None:
    failed = WorkerEnd(worker="w1", exit=BAD, step=9)
    finished = WorkerEnd(worker="w0", exit=GOOD, step=9)
    verdict = in_any_order(finished, failed, outlived="w1")
    assert (verdict.first_failure, verdict.reason) == (failed, "w1 failed after the last step")


def test_who_was_killed_after_the_last_step_did_fail_if_all_had_agreed_on_the_end() -> None:
    killed = WorkerEnd(worker="w1", exit=KILLED, step=9)
    finished = WorkerEnd(worker="w0", exit=GOOD, step=9)
    assert in_any_order(finished, killed, outlived="w1").exit_code == 0
    assert in_any_order(finished, killed).first_failure == killed


def test_a_death_that_was_survived_is_not_the_one_to_look_at() -> None:
    survived = WorkerEnd(worker="w1", exit=KILLED, step=3)
    others = [WorkerEnd(worker=worker, exit=BAD, step=9) for worker in ("w2", "w0")]
    assert decide_verdict([survived, *others], JobEnd(), signal_number=None).first_failure == others[0]


def test_a_worker_that_was_asked_to_end_is_not_the_one_to_look_at() -> None:
    asked, failed = WorkerEnd(worker="w0", exit=Exit(code=-15), was_asked=True), WorkerEnd(worker="w1", exit=BAD)
    stopped = JobEnd(stop_reason="w7 died elsewhere")
    assert decide_verdict([asked], stopped, signal_number=None).first_failure is None
    assert decide_verdict([asked, failed], stopped, signal_number=None).first_failure == failed


def test_a_stopped_job_failed_whatever_its_workers_returned() -> None:
    verdict = decide_verdict(ends(GOOD), JobEnd(stop_reason="leaf 3 killed 3 workers"), signal_number=None)
    assert verdict.exit_code == 1


def test_an_interrupted_job_ends_as_a_shell_would() -> None:
    verdict = decide_verdict(ends(BAD), JobEnd(), signal_number=2)
    assert verdict.exit_code == 130
    assert failure_report(verdict, None) == ["stopped by SIGINT"]


def test_the_failure_report_names_worker_signal_step_and_leaf() -> None:
    end = WorkerEnd(worker="w1", exit=KILLED, step=7, leaf=3)
    verdict = decide_verdict([end], JobEnd(stop_reason="leaf 3 killed 3 workers"), signal_number=None)
    words = LastWords(directory="/d/w1", stdout=["one"], stderr=["two", "three"], error="ValueError: bad")
    assert failure_report(verdict, words) == [
        "first to fail: w1, killed by SIGKILL in leaf 3 after step 7",
        "  error: ValueError: bad",
        "  last lines of /d/w1/stdout.log:",
        "  | one",
        "  last lines of /d/w1/stderr.log:",
        "  | two",
        "  | three",
        "the job failed: leaf 3 killed 3 workers",
    ]


def test_a_script_that_knows_no_steps_failed_without_one() -> None:
    verdict = Verdict(exit_code=1, reason="no worker is left", first_failure=WorkerEnd(worker="w0", exit=BAD))
    assert failure_report(verdict, LastWords(directory="/d/w0")) == [
        "first to fail: w0, exit code 1",
        "  it printed nothing (/d/w0)",
        "the job failed: no worker is left",
    ]


def test_the_summary_of_a_good_end() -> None:
    good = Verdict(exit_code=0, reason="finished", num_survived=1)
    told = summary(good, num_steps=30, elapsed_s=12.0, good_s=9.0)
    assert told == "finished: 30 steps in 12.0 s, goodput 75%, 1 death survived"
    assert summary(good, num_steps=0, elapsed_s=2.0, good_s=None) == "finished in 2.0 s, 1 death survived"


def test_whom_a_node_waits_for() -> None:
    statuses = {"w0": ("left", "a"), "w1": ("starting", "b"), "w2": ("dead", "b"), "w3": ("starting", "gone")}
    going_on = JobView(
        job="j",
        generation=0,
        is_closed=False,
        is_stopped=False,
        is_finished=False,
        reason="",
        workers=[
            WorkerView(worker=worker, status=status, agent=agent, reason="", pid=0, step=0, generation=0, rank=-1)
            for worker, (status, agent) in statuses.items()
        ],
        nodes=[
            NodeView(agent=agent, address="", num_workers=1, is_present=agent != "gone", node_rank=0, reason="")
            for agent in ("a", "b", "gone")
        ],
    )
    finished = replace(going_on, is_finished=True)

    def said(view: JobView, *, since_s: float = 5.0, is_regrouping: bool = False, **running: int) -> str:
        return whom_we_wait_for(view, agent="a", running=running, is_regrouping=is_regrouping, since_s=since_s)

    assert said(going_on) == "waiting for w1 on b to end"
    assert said(going_on, w4=77) == "waiting for w4 (pid 77), w1 on b to end"
    assert said(going_on, since_s=4.9) == ""
    assert said(going_on, is_regrouping=True, w4=77) == ""  # it trains on
    assert said(finished, is_regrouping=True, w4=77) == "waiting for w4 (pid 77) to end"
    assert said(finished) == ""


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
PLACE = Place(
    worker="w5", attempt=2, local_rank=1, rank=3, size=4, node_rank=1, num_nodes=2, master_address="10.0.0.9",
    master_port=4567, num_restarts=3, max_restarts=5, max_workers=8,
)  # fmt: skip


def test_workers_get_torchruns_names_and_ours() -> None:
    given = worker_environment(NODE, PLACE, {"HOME": "/h", "EVERSTEP_TOKEN": "secret"})
    assert (
        given.items()
        >= {
            "HOME": "/h",
            "RANK": "3",
            "LOCAL_RANK": "1",
            "WORLD_SIZE": "4",
            "LOCAL_WORLD_SIZE": "2",
            "GROUP_RANK": "1",
            "GROUP_WORLD_SIZE": "2",
            "MASTER_ADDR": "10.0.0.9",
            "MASTER_PORT": "4567",
            "TORCHELASTIC_RESTART_COUNT": "3",
            "OMP_NUM_THREADS": "1",
            "EVERSTEP_WORKER": "w5",
            "EVERSTEP_TOKEN_FILE": "/t",
            "EVERSTEP_EVENTS": "/d/events.jsonl",
            "EVERSTEP_BOARD": "/d/w5/board",
            "TORCHELASTIC_ERROR_FILE": "/d/w5/error.json",
            "TORCHELASTIC_RUN_ID": "j",
            "TORCHELASTIC_USE_AGENT_STORE": "False",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
            "ROLE_NAME": "default",
        }.items()
    )
    assert "EVERSTEP_TOKEN" not in given
    assert "EVERSTEP_ADDRESS" not in given


def test_what_the_user_set_is_kept() -> None:
    given = worker_environment(NODE, PLACE, {"OMP_NUM_THREADS": "4", "EVERSTEP_EVENTS": "/e"})
    assert given["OMP_NUM_THREADS"] == "4"
    assert given["EVERSTEP_EVENTS"] == "/e"
    assert (
        worker_environment(NODE, PLACE, {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"})["TORCH_NCCL_ASYNC_ERROR_HANDLING"]
        == "3"
    )


def test_a_virtual_local_rank_sees_one_gpu() -> None:
    node = replace(NODE, is_local_rank_virtual=True)
    assert worker_environment(node, PLACE, {})["CUDA_VISIBLE_DEVICES"] == "1"
    given = worker_environment(node, PLACE, {"CUDA_VISIBLE_DEVICES": "4, 7"})
    assert (given["LOCAL_RANK"], given["RANK"], given["CUDA_VISIBLE_DEVICES"]) == ("0", "3", "7")
    with pytest.raises(UsageError, match="no device for local rank 1"):
        worker_environment(node, PLACE, {"CUDA_VISIBLE_DEVICES": "4"})


def test_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHON_EXEC", "/opt/python")
    assert worker_command("train.py", [])[0] == "/opt/python"
    with pytest.raises(UsageError, match="at once"):
        worker_command("x", [], is_module=True, is_program=True)
    assert worker_command("train.py", ["-x"])[1:] == ["-u", "train.py", "-x"]
    assert worker_command("pkg.train", [], is_module=True)[1:] == ["-u", "-m", "pkg.train"]
    assert worker_command("bash", ["-c", "true"], is_program=True) == ["bash", "-c", "true"]


def test_gpus_are_counted_as_far_as_they_may_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidiactl"):
        (tmp_path / name).touch()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert count_gpus(tmp_path) == 3
    for visible, number in {"0,2": 2, "": 0, "-1": 0, "0,1,2,3": 3}.items():
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert count_gpus(tmp_path) == number
    assert count_cpus() >= 1


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
        (Shown(redirects=Streams(of_all=STDOUT)), {STDERR}, {STDERR}),
        (Shown(redirects=Streams(of_all=BOTH), tee=Streams(of_all=STDERR)), {STDERR}, {STDERR}),
        (Shown(redirects=Streams(by_rank={1: BOTH})), {STDOUT, STDERR}, set()),
        (Shown(redirects=Streams(of_all=BOTH), tee=Streams(by_rank={0: STDOUT})), {STDOUT}, set()),
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
    with Display(Console(out, err), copies=copies) as display:
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
    board = Board(files.board)
    err = Terminal()
    board.write(step=13, leaf=-1, phase=OUTSIDE)
    with Display(Console(Terminal(), err)) as display:
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


NOW = Progress(num_steps=120, steps_per_s=9.5, alive=("w0", "w1", "w3"), generation="generation 2", elapsed_s=61.0)


@pytest.mark.parametrize(
    ("width", "line"),
    [
        (80, "step 120 · 9.5 steps/s · generation 2 · w0 w1 w3 · 1:01"),
        (56, "step 120 · 9.5 steps/s · generation 2 · w0 w1 w3 · 1:01"),
        (55, "step 120 · 9.5 steps/s · generation 2 · 3 workers"),
        (40, "step 120 · generation 2"),
        (10, "step 120"),
        (5, "step"),
    ],
)
def test_the_progress_line_fits(width: int, line: str) -> None:
    assert progress_line(NOW, width=width) == line


def test_a_script_that_knows_no_steps_shows_its_workers_and_the_time() -> None:
    now = replace(NOW, num_steps=0, steps_per_s=None, generation="")
    assert progress_line(now, width=80, dot="|") == "w0 w1 w3 | 1:01"
    assert progress_line(replace(now, alive=()), width=80) == ""
    assert clock(3661) == "1:01:01"


def test_the_pace_is_that_of_the_last_seconds() -> None:
    pace = Pace(over_s=10.0)
    assert pace.at(0, 0.0) is None
    assert pace.at(10, 100.0) is None
    assert pace.at(20, 105.0) == 2.0
    assert pace.at(70, 115.0) == 5.0


def committed(step: int, generation: int, t: float) -> dict[str, object]:
    return {"event": "step.committed", "step": step, "generation": generation, "t": t}


def test_goodput_is_the_time_between_commits_of_one_generation() -> None:
    goodput = Goodput()
    assert not goodput.is_known
    goodput.hear({"event": "worker.lost"})
    for event in (
        committed(1, 1, 10.0),
        committed(2, 1, 11.0),  # + 1
        committed(2, 1, 11.1),  # the other worker's
        committed(3, 2, 15.0),  # a regroup between them
        committed(4, 2, 16.5),  # + 1.5
        committed(9, 2, 20.0),  # some were not seen
    ):
        goodput.hear(event)
    assert goodput.good_s == 2.5


# --- where others reach this machine ---


def test_an_address_of_this_machine_is_taken_as_it_is() -> None:
    assert own_address("127.0.0.1") == "127.0.0.1"
    assert own_address("localhost") in ("127.0.0.1", "::1")


def test_a_name_that_leads_nowhere_is_refused() -> None:
    with pytest.raises(UsageError, match="has no address"):
        own_address("no-such-host.invalid")
