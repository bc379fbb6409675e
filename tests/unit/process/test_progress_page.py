"""The progress board: what a worker writes is what its agent reads, also after its death."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from everstep.ipc import progress_page
from everstep.ipc.progress_page import ProgressPage, WorkerProgress, allocate, read_board
from everstep.wire import COMPUTING, OUTSIDE, WAITING
from lab.command import run


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(progress_page.time, "monotonic", lambda: now[0])
    return now


def test_what_is_written_is_read(tmp_path: Path, clock: list[float]) -> None:
    written = ProgressPage(tmp_path / "board")
    clock[0] = 101.0
    written.write(step=3, micro_batch=2, phase=COMPUTING)
    assert read_board(tmp_path / "board") == WorkerProgress(step=3, micro_batch=2, phase=COMPUTING, since=101.0)
    assert written.progress == read_board(tmp_path / "board")
    written.close()
    assert read_board(tmp_path / "board").step == 3


def test_a_board_that_was_never_written_reads_as_nothing_done(tmp_path: Path) -> None:
    assert read_board(tmp_path / "none") == WorkerProgress()
    allocate(tmp_path / "blank")
    assert read_board(tmp_path / "blank") == WorkerProgress()


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small disk")
def test_a_disk_without_room_for_it_is_an_error_and_not_a_death(tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", tmp_path], check=True)
    try:
        allocate(tmp_path / "early")
        code = (
            "import sys; from everstep.ipc.progress_page import *;"
            " ProgressPage(sys.argv[1]).write(step=3, micro_batch=2, phase=OUTSIDE)"
        )
        done = run(sys.executable, "-c", code, tmp_path / "late", folder=Path("/"))
        assert done.returncode == 1 and "No space left on device" in done.stderr
        assert run(sys.executable, "-c", code, tmp_path / "early", folder=Path("/")).returncode == 0
        assert read_board(tmp_path / "early").step == 3
    finally:
        subprocess.run(["umount", "--lazy", tmp_path], check=True)


def test_the_size_of_the_state_is_shown_with_the_next_phase(tmp_path: Path) -> None:
    worker = ProgressPage(tmp_path / "board")
    worker.note_state_bytes(500)
    worker.write(step=3, micro_batch=-1, phase=OUTSIDE)
    assert read_board(tmp_path / "board").state_bytes == worker.progress.state_bytes == 500
    worker.close()


def test_only_the_wait_for_the_sum_counts_as_a_usual_wait(clock: list[float]) -> None:
    worker = ProgressPage()
    worker.write(step=0, micro_batch=0, phase=COMPUTING)
    worker.write(step=0, micro_batch=-1, phase=WAITING)
    clock[0] += 2
    worker.write(step=0, micro_batch=-1, phase=COMPUTING)  # the update
    assert worker.progress.longest_wait_s == 2
    worker.write(step=1, micro_batch=-1, phase=OUTSIDE)
    worker.write(step=1, micro_batch=-1, phase=WAITING)  # for a newcomer that loads its data
    clock[0] += 50
    worker.write(step=1, micro_batch=-1, phase=OUTSIDE)
    assert worker.progress.longest_wait_s == 2
    worker.close()


def test_a_step_lasts_from_its_first_micro_batch_to_its_commit(clock: list[float]) -> None:
    worker = ProgressPage()
    worker.write(step=0, micro_batch=0, phase=COMPUTING)
    clock[0] += 1
    worker.write(step=0, micro_batch=1, phase=COMPUTING)
    clock[0] += 2
    worker.write(step=1, micro_batch=-1, phase=OUTSIDE)
    clock[0] += 9
    worker.write(step=1, micro_batch=0, phase=COMPUTING)
    assert worker.progress.longest_step_s == 3
    worker.close()
