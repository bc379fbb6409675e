"""An agent's reports: none of them ends in silence."""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import replace

import pytest

from everstep import wire
from everstep.ipc.progress_page import WorkerProgress, has_lifeline, read_board
from everstep.launcher.reporting import AgentReporter
from everstep.launcher.worker_files import WorkerFiles
from everstep.storage import private_file

WAIT_S = 30.0


class Listener:
    """A coordinator that only listens."""

    def __init__(self):
        self.reports, self.exits, self.views = queue.Queue(), queue.Queue(), queue.Queue()
        self.slots = queue.Queue()
        self.exit_heard = threading.Event()
        self.peers_seen, self.peers = 0, []

    def report(self, agent, report):
        self.reports.put(report)
        peers = self.peers if report.peers_seen != self.peers_seen else []
        return wire.AgentOrders(kill=[], is_ended=True, reason="", peers_seen=self.peers_seen, peers=peers)

    def exited(self, worker, end):
        self.exit_heard.wait(WAIT_S)
        self.exits.put(worker)

    def reserve(self, request):
        self.slots.put((request.replaces, self.exits.qsize()))
        return wire.ReservedWorker(worker="w9")

    def check(self):
        return wire.Health()

    def view(self):
        self.views.put(1)

    def close(self):
        pass


REPORT = wire.AgentReport(incarnation="i", node="a", workers=[])


@pytest.fixture
def begin():
    lines = []

    def begin(listener, look=lambda: (REPORT, {}), **more):
        said, failures, orders = [], [], queue.Queue()
        more = {"on_orders": orders.put} | more
        line = AgentReporter(
            lambda: listener, agent="a", incarnation="i", heartbeat_s=0.05, look=look,
            on_reserved=lambda request, reserved: None, on_failure=failures.append, say=said.append, **more,
        )  # fmt: skip
        line.open()
        lines.append(line)
        line.said, line.failures, line.orders = said, failures, orders
        return line

    yield begin
    for line in lines:
        line.close(0.0)


def test_an_agent_reports_on_after_any_error_of_its_own(begin):
    listener, troubles = Listener(), iter([OSError(116, "Stale file handle"), ValueError("odd")])

    def look():
        if trouble := next(troubles, None):
            raise trouble
        return REPORT, {}

    line = begin(listener, look)

    assert listener.reports.get(timeout=WAIT_S) == replace(REPORT, number=1, wait_s=0.05)
    assert ["Stale file handle" in each for each in line.said] == [True, False]
    assert not line.failures


def test_an_agent_reports_on_when_it_cannot_do_what_it_is_told(begin):
    heard = queue.Queue()

    def on_orders(orders):
        heard.put(orders)
        if heard.qsize() == 1:
            raise OSError(24, "Too many open files")

    line = begin(Listener(), on_orders=on_orders)

    for _ in range(2):
        heard.get(timeout=WAIT_S)
    assert "Too many open files" in line.said[0]
    assert not line.failures


def test_a_death_is_told_even_if_the_first_try_fails_in_an_unexpected_way(begin):
    listener = Listener()
    listener.exit_heard.set()
    exited, tries = listener.exited, []

    def fail_once(worker, end):
        tries.append(worker)
        if len(tries) == 1:
            raise MemoryError
        exited(worker, end)

    listener.exited = fail_once
    line = begin(listener)
    line.report_exit("w1", wire.WorkerExit(exit_code=-9))

    assert listener.exits.get(timeout=WAIT_S) == "w1"
    line.close(WAIT_S)


def test_a_replacement_is_asked_for_after_the_death_is_told(begin):
    listener = Listener()
    line = begin(listener)
    line.report_exit("w1", wire.WorkerExit(exit_code=-9))
    line.ask_replacement("r", "w1")
    listener.exit_heard.set()

    assert listener.slots.get(timeout=WAIT_S) == ("w1", 1)


def test_peers_are_told_once_and_known_from_then_on(begin):
    listener = Listener()
    listener.peers_seen = 7
    listener.peers = [wire.Peer(agent=name, address="h", probe_port=1) for name in ("a", "b")]
    line = begin(listener)

    assert [listener.reports.get(timeout=WAIT_S).peers_seen for _ in range(3)] == [0, 7, 7]
    assert [[peer.agent for peer in line.orders.get(timeout=WAIT_S).peers] for _ in range(3)] == [["b"]] * 3


def test_nobody_asks_for_a_view_that_is_not_wanted(begin, monkeypatch):
    monkeypatch.setattr("everstep.launcher.reporting._LOOK_S", 0.02)
    wants, listener = threading.Event(), Listener()
    begin(listener, wants_view=wants.is_set)
    for _ in range(5):
        listener.reports.get(timeout=WAIT_S)
    assert listener.views.empty()

    wants.set()

    assert listener.views.get(timeout=WAIT_S)


def test_a_log_that_was_moved_away_kills_nobody(tmp_path):
    files = WorkerFiles(directory=tmp_path / "w0")
    files.make(attempt=0, local_rank=0)
    for path in (files.stdout, files.stderr):
        private_file.append(path).close()
    before = time.monotonic()
    files.stdout.unlink()

    assert files.written_at() >= before  # nobody can say that it is silent


def test_a_board_that_cannot_be_read_tells_of_no_progress(tmp_path):
    assert read_board(tmp_path) == WorkerProgress()  # a folder, which is no file
    assert not has_lifeline(tmp_path)
