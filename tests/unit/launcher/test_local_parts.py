"""Parts of a run that are started again: where they cannot be, that is told, and the run goes on."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from everstep.ipc.event_loop import EventLoop
from everstep.launcher import local_coordinator, saver_process
from everstep.launcher.local_coordinator import CoordinatorFiles, LocalCoordinator
from everstep.launcher.saver_process import SaverProcess


def read_only(*_: Any, **__: Any) -> Any:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


def test_a_coordinator_that_cannot_be_started_again_is_tried_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_coordinator, "start_coordinator", read_only)
    said: list[str] = []
    local = LocalCoordinator(CoordinatorFiles(directory=tmp_path), say=said.append)
    local._is_closing.set()  # so that it does not wait
    local._start_again(1)
    assert "Read-only file system" in said[0]


def test_a_coordinator_that_cannot_be_started_at_all_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_coordinator, "start_coordinator", read_only)
    with pytest.raises(OSError, match="Read-only"), LocalCoordinator(CoordinatorFiles(directory=tmp_path), say=print):
        pass


def test_a_saver_that_cannot_be_started_leaves_writing_to_the_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saver_process, "start_detached", read_only)
    said: list[str] = []
    loop = EventLoop()
    safe = SaverProcess(tmp_path / "saver", loop, said.append)
    safe.open()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as worker:
        worker.connect(str(tmp_path / "saver"))
        loop.turn()
    assert "checkpoints are written by the workers themselves" in said[0]
    assert safe.path is None
    safe.close()
