"""A worker's end is heard before the kernel is done with it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from everstep.ipc.progress_page import ProgressPage, await_end, has_lifeline
from everstep.process import ending_code

HOLD = """
import os, sys, threading, time
from everstep.ipc.progress_page import ProgressPage
if sys.argv[2] == "thread":
    thread = threading.Thread(target=ProgressPage, args=(sys.argv[1],)); thread.start(); thread.join()
else:
    board = ProgressPage(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
if sys.argv[2] == "exec":
    os.execvp("cat", ["cat"])
sys.exit(int(sys.argv[2]) if sys.argv[2].isdigit() else 0)
"""


@contextmanager
def holder(board: Path, how: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", HOLD, str(board), how]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@contextmanager
def heard(board: Path) -> Iterator[list[bool]]:
    """What a thread that waits for the end has heard when the block is over."""
    answers: list[bool] = []
    waiter = threading.Thread(target=lambda: answers.append(await_end(board)), daemon=True)
    waiter.start()
    yield answers
    waiter.join(60)
    assert not waiter.is_alive()


def go_on(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.write(b"\n")
    process.stdin.flush()


def await_seen(pid: int) -> None:
    """Until it has ended, and is not yet reaped."""
    descriptor = os.pidfd_open(pid)
    assert select.select([descriptor], [], [], 60)[0]
    os.close(descriptor)


def test_a_kill_is_heard_with_its_signal(tmp_path: Path) -> None:
    with holder(tmp_path / "board", "0") as process:
        assert has_lifeline(tmp_path / "board")
        assert ending_code(process.pid) is None
        with heard(tmp_path / "board") as answers:
            process.send_signal(signal.SIGKILL)
        assert answers == [True]
        assert ending_code(process.pid) == -signal.SIGKILL


def test_an_exit_is_heard_with_its_code(tmp_path: Path) -> None:
    with holder(tmp_path / "board", "7") as process:
        with heard(tmp_path / "board") as answers:
            go_on(process)
        assert answers == [True]
        await_seen(process.pid)
        assert ending_code(process.pid) == 7


def test_a_program_that_replaces_itself_is_not_taken_for_dead(tmp_path: Path) -> None:
    with holder(tmp_path / "board", "exec") as process:
        with heard(tmp_path / "board") as answers:
            go_on(process)
        assert answers == [True]
        assert ending_code(process.pid) is None


def test_only_the_main_thread_holds_it(tmp_path: Path) -> None:
    with holder(tmp_path / "board", "thread"):
        assert not has_lifeline(tmp_path / "board")
        assert not await_end(tmp_path / "board")


def test_a_board_that_nobody_made_has_none(tmp_path: Path) -> None:
    assert not has_lifeline(tmp_path / "board")


def test_what_is_gone_is_not_about_to_end() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    assert ending_code(process.pid) is None


def test_a_board_in_plain_memory_needs_no_lifeline() -> None:
    ProgressPage().close()
