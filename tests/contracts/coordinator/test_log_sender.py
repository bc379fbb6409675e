"""An agent sends what its workers print, whatever goes wrong with one call, one worker, one file."""

from __future__ import annotations

import fcntl
import os
import random
import threading

import pytest

from everstep import wire
from everstep.client.calls import Coordinator
from everstep.errors import CoordinatorUnreachable
from everstep.launcher.log_sender import LogSender
from everstep.launcher.worker_files import WorkerFiles
from everstep.launcher.worker_output import WorkerOutput
from everstep.record.log_masks import Masks
from lab.command import until
from lab.log_writer import everything

AGENT = "a0"


@pytest.fixture
def job(play):
    return play().coordinator


@pytest.fixture
def connect(job, server):
    return lambda: Coordinator(job.url, server.token, job.job)


@pytest.fixture
def sender(connect, tmp_path):
    return sender_of(connect, tmp_path)


def sender_of(connect, tmp_path, say=print):
    return LogSender(connect, agent=AGENT, directory=tmp_path, masks=Masks(), say=say)


def worker(job, tmp_path, name=None):
    """A worker's name, and its files."""
    name = name or job.reserve(wire.ReserveWorker(agent=AGENT, request=random.randbytes(8).hex())).worker
    files = WorkerFiles(directory=tmp_path / name)
    files.directory.mkdir()
    for path in (files.stdout, files.stderr):
        path.touch()
    return name, files


def append(path, data):
    with path.open("ab") as file:
        file.write(data)


def texts(job, **wanted):
    return [each.text for each in everything(job, **wanted)]


def test_bytes_that_are_no_text_are_sent_like_any_other_line(job, sender, tmp_path):
    name, files = worker(job, tmp_path)
    line = b"\xff" * 99 + b"\n"
    append(files.stdout, line * 6000 + b"the end\n")
    with sender:
        sender.follow(name, files, rank=0, is_alive=lambda: False)
        until(lambda: texts(job, text="the end") == ["the end"])

    found = texts(job)
    assert len(found) == 6001
    assert set(found[:-1]) == {"\ufffd" * 99}


def test_a_worker_that_the_coordinator_does_not_know_does_not_end_the_log_of_the_others(job, sender, tmp_path, caplog):
    known, unknown = worker(job, tmp_path), worker(job, tmp_path, name="w99")
    with sender:
        for name, files in (unknown, known):
            sender.follow(name, files, rank=0, is_alive=lambda: True)
            append(files.stdout, b"one\n")
        until(lambda: texts(job) == ["one"])
        append(known[1].stdout, b"two\n")
        until(lambda: texts(job) == ["one", "two"])
    assert "the coordinator refused all output of w99" in caplog.text


def test_a_note_with_half_a_character_does_not_hold_up_the_others(job, sender):
    with sender:
        sender.note("before \ud800 after")
        sender.note("next")
        until(lambda: len(texts(job)) == 2)
    assert texts(job) == ["before ? after", "next"]


def test_what_an_agent_has_left_is_sent_by_the_next_one_also_if_that_has_the_same_process_number(
    job, connect, tmp_path
):
    def unreachable():
        raise CoordinatorUnreachable("not yet", code="test")

    name, files = worker(job, tmp_path)
    append(files.stdout, b"left behind\n")
    with sender_of(unreachable, tmp_path) as first:
        first.follow(name, files, rank=0, is_alive=lambda: False)
    other = worker(job, tmp_path)
    with sender_of(connect, tmp_path) as second:
        second.follow(*other, rank=1, is_alive=lambda: False)
        until(lambda: texts(job) == ["left behind"])
        second.close(10.0)
    assert list(tmp_path.glob("*.unsent-logs")) == []


def test_what_was_left_is_taken_over_where_only_a_file_that_can_be_written_can_be_locked(
    job, connect, tmp_path, monkeypatch
):
    """As on NFS."""
    name, files = worker(job, tmp_path)
    append(files.stdout, b"left behind\n")
    (tmp_path / "a0-1.unsent-logs").write_text(f'{{"{name}": 0}}')
    lock = fcntl.flock

    def lock_as_nfs(file, how):
        flags = fcntl.fcntl(file, fcntl.F_GETFL)
        if how & fcntl.LOCK_EX and flags & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(9, "Bad file descriptor")
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", lock_as_nfs)
    with sender_of(connect, tmp_path):
        until(lambda: texts(job) == ["left behind"])


def test_what_was_read_but_not_kept_at_the_end_is_counted(job, server, tmp_path):
    is_over, is_sending = threading.Event(), threading.Event()

    class Hanging(Coordinator):
        def send_logs(self, agent, message):
            if message.chunks:
                is_sending.set()
                is_over.wait()
                raise CoordinatorUnreachable("given up", code="test")
            return super().send_logs(agent, message)

    def hang():
        return Hanging(job.url, server.token, job.job)

    name, files = worker(job, tmp_path)
    append(files.stdout, b"x" * 99 + b"\n")
    said = []
    with sender_of(hang, tmp_path, said.append) as sender:
        sender.follow(name, files, rank=0, is_alive=lambda: False)
        assert is_sending.wait(60)
        sender.close(0.1)
        is_over.set()
        sender._thread.join(60)
    assert said == [f"the coordinator has not confirmed 100 bytes of the workers' output; see {tmp_path}"]
    assert len(list(tmp_path.glob("*.unsent-logs"))) == 1  # for the next agent


def test_a_file_that_cannot_be_read_is_read_later(job, sender, tmp_path, caplog):
    name, files = worker(job, tmp_path)
    files.stdout.unlink()
    files.stdout.mkdir()  # an error that root gets, too
    with sender:
        sender.follow(name, files, rank=0, is_alive=lambda: False)
        until(lambda: "cannot be read; trying again" in caplog.text)
        files.stdout.rmdir()
        append(files.stdout, b"there after all\n")
        until(lambda: texts(job) == ["there after all"])


def test_a_file_that_cannot_be_freed_does_not_end_the_log(job, connect, tmp_path, monkeypatch):
    def fail(self, most_bytes):
        raise OSError(5, "Input/output error")

    is_away = threading.Event()

    def connect_later():
        if is_away.is_set():
            raise CoordinatorUnreachable("away", code="test")
        return connect()

    name, files = worker(job, tmp_path)
    sender = sender_of(connect_later, tmp_path)
    with sender:
        sender.follow(name, files, rank=0, is_alive=lambda: True)
        append(files.stdout, b"one\n")
        until(lambda: texts(job) == ["one"])
        monkeypatch.setattr(WorkerOutput, "free_old", fail)
        is_away.set()
        monkeypatch.setattr(Coordinator, "send_logs", lambda *_: connect_later())
        append(files.stdout, b"two\n")
        until(lambda: not sender._thread.is_alive() or sender._followed[name].is_unreadable)
        is_away.clear()
        monkeypatch.undo()
        until(lambda: texts(job) == ["one", "two"])
