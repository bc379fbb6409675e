"""Results of a trial from the lines that its script prints, by a pattern."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from everstep.client.calls import Coordinator
from everstep.job_file.metric_line import read_metric_line
from everstep.launcher.printed_results import PrintedResults, find_result
from everstep.wire.trials import TrialKept, TrialResult
from lab.command import until

PLAIN = r"val_loss=([0-9.e+-]+|nan)"
NAMED = r"epoch (?P<step>\d+).*acc=(?P<metric>\S+)"


@pytest.mark.parametrize(
    ("pattern", "line", "expected"),
    [
        (PLAIN, "val_loss=0.25", (3, 0.25)),
        (PLAIN, "  step 7: val_loss=1e-3, ok", (3, 0.001)),
        (PLAIN, "val_loss=nan", (3, "nan")),
        (PLAIN, "train_loss=0.25", None),
        (PLAIN, "val_loss=-", None),
        (NAMED, "epoch 12 done acc=0.5", (12, 0.5)),
        (NAMED, "epoch 12 done acc=high", None),
    ],
)
def test_a_line_is_a_result_if_it_matches_and_has_numbers(pattern: str, line: str, expected: Any) -> None:
    found = find_result(read_metric_line(pattern), line, 3)
    assert (None if found is None else (found.length, found.metric)) == expected


Search = tuple[Coordinator, list[dict[str, Any]], list[int]]


class TinySearch(BaseHTTPRequestHandler):
    """Waits after a result of length 3, and stops after one of length 5."""

    results: list[dict[str, Any]]
    refusals: list[int]  # of the next requests: the coordinator is away

    def do_POST(self) -> None:
        if self.refusals:
            self.close_connection = True  # without an answer
            self.refusals.pop()
            return
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path.endswith("/result"):
            self.results.append(message)
        length = max((each["length"] for each in self.results), default=0)
        wish = "stop" if length >= 5 else "wait" if length >= 3 else "train"
        reply: dict[str, Any] = {"number": 1, "wish": wish}
        if self.path.endswith("/target"):
            reply |= {"length": None, "unit": "batches", "reason": ""}
        body = json.dumps(reply).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_values: Any) -> None:
        return


@pytest.fixture
def search() -> Iterator[Search]:
    kind = type("Kind", (TinySearch,), {"results": [], "refusals": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield Coordinator(f"http://127.0.0.1:{server.server_port}", "worker:x", "e1-t1"), kind.results, kind.refusals
        server.shutdown()
        thread.join()


def test_lines_become_results_and_the_search_ends_the_trial(tmp_path: Path, search: Search) -> None:
    coordinator, results, _ = search
    stopped = threading.Event()
    worker = tmp_path / "w0"
    worker.mkdir()
    output = worker / "stdout.log"
    output.write_text("val_loss=1.0\nnothing\rval_loss=0.9\rval_lo")
    with PrintedResults(coordinator, PLAIN, tmp_path, lambda _reason: stopped.set()) as printed:
        until(lambda: len(results) == 2)
        with output.open("a") as file:
            file.write("ss=0.8\nval_loss=0.7\n")
        until(lambda: len(results) == 4)
        assert not stopped.is_set()
        with output.open("a") as file:
            file.write("val_loss=0.6\n")
        assert stopped.wait(60)
        assert printed.is_stopped
        printed.close(60)
    assert [(each["length"], each["metric"]) for each in results] == [(1, 1.0), (2, 0.9), (3, 0.8), (4, 0.7), (5, 0.6)]


def test_the_last_line_counts_without_its_end(tmp_path: Path, search: Search) -> None:
    coordinator, results, _ = search
    (tmp_path / "w0").mkdir()
    (tmp_path / "w0" / "stdout.log").write_text("")
    (tmp_path / "w0" / "stderr.log").write_text("val_loss=1.0")
    with PrintedResults(coordinator, PLAIN, tmp_path, lambda _reason: None) as printed:
        printed.close(60)
    assert [each["length"] for each in results] == [1]


def test_what_was_printed_last_is_told_when_the_coordinator_is_back(tmp_path: Path, search: Search) -> None:
    coordinator, results, refusals = search
    refusals += [1, 2, 3]
    (tmp_path / "w0").mkdir()
    (tmp_path / "w0" / "stdout.log").write_text("val_loss=1.0\nval_loss=0.5")
    with PrintedResults(coordinator, PLAIN, tmp_path, lambda _reason: None) as printed:
        assert printed.close(60)
    assert [each["metric"] for each in results] == [1.0, 0.5]


def test_the_caller_knows_if_results_could_not_be_told_while_the_coordinator_was_away(
    tmp_path: Path, search: Search
) -> None:
    coordinator, results, refusals = search
    refusals += range(10_000)
    (tmp_path / "w0").mkdir()
    (tmp_path / "w0" / "stdout.log").write_text("val_loss=1.0\n")
    with PrintedResults(coordinator, PLAIN, tmp_path, lambda _reason: None) as printed:
        assert not printed.close(0.2)
    assert results == []


def test_a_coordinator_that_is_slow_but_there_gets_all_results(tmp_path: Path, search: Search) -> None:
    """The patience is for its absence, however long the whole takes."""
    coordinator, results, _ = search
    (tmp_path / "w0").mkdir()
    (tmp_path / "w0" / "stdout.log").write_text("step 1: val_loss=1.0\n" * 40)
    patience_s, real = 0.5, coordinator.report_result

    def slow(result: TrialResult) -> TrialKept:
        threading.Event().wait(0.02)
        return real(result)

    coordinator.report_result = slow  # type: ignore[method-assign]
    pattern = r"step (?P<step>\d+): val_loss=(?P<metric>\S+)"
    began = time.monotonic()
    with PrintedResults(coordinator, pattern, tmp_path, lambda _reason: None) as printed:
        assert printed.close(patience_s)
    assert len(results) == 40 and time.monotonic() - began > patience_s
