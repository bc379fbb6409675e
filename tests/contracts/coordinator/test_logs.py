"""What workers print is kept by the coordinator, once, and found again: on SQLite and on PostgreSQL."""

from __future__ import annotations

import base64
import random
import threading
import time

import pytest

from everstep import wire
from everstep.errors import Refused
from everstep.record.log_chunk import STDERR, STDOUT
from everstep.wire import LogsRequest
from lab.command import until
from lab.log_writer import NOW, Writer, everything, texts


@pytest.fixture(scope="module")
def server(server_on_each_store):
    return server_on_each_store


def test_lines_come_back_in_order_with_all_that_is_known_of_them(play):
    writer = Writer(play().coordinator, agent="node-1")
    kept = writer.say("hello", "WARNING: careful", rank=3)
    assert kept.positions == [wire.LogPosition(worker="w0", next_line=2, stdout=23, stderr=0)]
    writer.say("Traceback (most recent call last):", rank=3, stream=STDERR)

    first, second, third = everything(writer.coordinator)
    assert first == wire.LoggedLine(
        worker="w0", node="node-1", rank=3, line=0, time=NOW, level=20, stream=STDOUT, text="hello"
    )
    assert (second.level, second.line, second.time) == (30, 1, NOW + 1)
    assert (third.level, third.line, third.stream) == (40, 2, STDERR)


def test_a_chunk_that_is_sent_again_is_kept_once(play):
    writer = Writer(play().coordinator)
    first, second = writer.chunk("a", "b"), writer.chunk("c")
    for _ in range(2):
        kept = writer.send(first, second)
    writer.send(first)

    assert [each.text for each in everything(writer.coordinator)] == ["a", "b", "c"]
    assert kept.positions[0].next_line == 3


def test_a_chunk_that_does_not_continue_what_is_kept_is_not_kept_and_the_reply_says_where_to_continue(play):
    writer = Writer(play().coordinator)
    writer.say("a")
    lost, later = writer.chunk("b"), writer.chunk("c")

    assert writer.send(later).positions[0].next_line == 1
    writer.send(lost, later)
    assert [each.text for each in everything(writer.coordinator)] == ["a", "b", "c"]


def test_an_agent_that_asks_learns_where_to_continue(play):
    writer = Writer(play().coordinator)
    writer.say("abc", "d")

    kept = writer.coordinator.send_logs("a0", wire.LogChunks(asks=["w0"]))
    assert kept.positions == [wire.LogPosition(worker="w0", next_line=2, stdout=6, stderr=0)]
    assert kept.node_log_mb == wire.Policy().node_log_mb


def test_filters_search_and_context(play):
    coordinator = play().coordinator
    one, two = Writer(coordinator, "n1"), Writer(coordinator, "n2")
    one.say("begin", "step 1", "ERROR: boom", "step 2", "end", rank=0)
    two.say("begin", "step 1", "WARNING: hm", "step 2", rank=1)

    assert texts(coordinator.logs(LogsRequest(worker="w1"))) == ["begin", "step 1", "WARNING: hm", "step 2"]
    assert texts(coordinator.logs(LogsRequest(rank=0, text="step"))) == ["step 1", "step 2"]
    assert texts(coordinator.logs(LogsRequest(node="n2", text="step"))) == ["step 1", "step 2"]
    assert texts(coordinator.logs(LogsRequest(node="n3"))) == []
    assert texts(coordinator.logs(LogsRequest(level=30))) == ["ERROR: boom", "WARNING: hm"]
    assert texts(coordinator.logs(LogsRequest(regex=r"^step \d$", worker="w0"))) == ["step 1", "step 2"]
    assert texts(coordinator.logs(LogsRequest(since=NOW + 1, until=NOW + 3, worker="w0"))) == ["step 1", "ERROR: boom"]
    around = coordinator.logs(LogsRequest(text="boom", context=1)).lines
    assert [(each.text, each.is_context) for each in around] == [
        ("step 1", True),
        ("ERROR: boom", False),
        ("step 2", True),
    ]


def test_context_is_found_across_chunks_and_beside_other_workers(play):
    coordinator = play().coordinator
    one, two = Writer(coordinator), Writer(coordinator)
    for number in range(70):  # more than wait to be packed together
        one.say(f"one {number}")
        two.say(f"two {number}")

    around = coordinator.logs(LogsRequest(regex="one (50|53)$", context=2))
    assert [(each.text, each.is_context) for each in around.lines] == [
        (f"one {number}", number not in (50, 53)) for number in range(48, 56)
    ]


def test_pages_of_any_size_have_each_line_once_while_chunks_are_packed_together(play):
    coordinator, chance = play().coordinator, random.Random(1)
    writers = [Writer(coordinator) for _ in range(3)]
    for writer in writers:
        writer.say("first")
    found, cursor, sent = [], "", 3
    for number in range(140):
        writer = chance.choice(writers)
        writer.say(*(f"{writer.name} {number} {each}" for each in range(chance.randint(1, 3))))
        view = coordinator.logs(LogsRequest(cursor=cursor, limit=chance.randint(1, 4)))
        found, cursor = found + view.lines, view.next
    while not view.is_end:
        view = coordinator.logs(LogsRequest(cursor=cursor, limit=7))
        found, cursor = found + view.lines, view.next

    sent = sum(writer.next_line for writer in writers)
    assert len(found) == len({(each.worker, each.line) for each in found}) == sent
    for writer in writers:
        assert [each.line for each in found if each.worker == writer.name] == list(range(writer.next_line))
    assert [(each.worker, each.line) for each in everything(coordinator)] == [
        (each.worker, each.line) for each in found
    ]


def test_a_reader_that_waits_gets_a_line_as_soon_as_it_comes(play):
    writer = Writer(play().coordinator)
    cursor = writer.coordinator.logs(LogsRequest()).next
    threading.Timer(0.2, lambda: writer.say("now")).start()
    began = time.monotonic()

    assert texts(writer.coordinator.logs(LogsRequest(cursor=cursor, wait_s=10))) == ["now"]
    assert time.monotonic() - began < 7  # not when the time was up
    assert writer.coordinator.logs(LogsRequest(cursor=cursor, text="other", wait_s=0.1)).lines == []


def test_the_oldest_lines_beyond_the_bound_are_dropped_and_counted(play):
    writer = Writer(play(log_mb=1).coordinator)
    for number in range(16):
        writer.say(*(f"{number} {line:05} {'x' * 990}" for line in range(100)))
    last = writer.say("last").positions[0]

    def view():
        return writer.coordinator.logs(LogsRequest(limit=1))

    until(lambda: view().notes)
    found = everything(writer.coordinator)
    (note,) = view().notes
    dropped = int(note.split()[2].replace(",", ""))
    assert dropped + len(found) == writer.next_line
    assert [each.line for each in found] == list(range(dropped, writer.next_line))
    assert 0.5e6 < sum(len(each.text) for each in found) < 1.3e6
    assert last.next_line == 1601


def test_lines_that_a_node_dropped_are_counted(play):
    writer = Writer(play().coordinator)
    writer.say("a")
    writer.say("z", dropped_lines=24, dropped_bytes=2_000_000)

    assert [(each.text, each.line) for each in everything(writer.coordinator)] == [("a", 0), ("z", 25)]
    view = writer.coordinator.logs(LogsRequest())
    assert view.notes == ["24 lines (2.0 MB) were dropped on their nodes before they could be sent: beyond node_log_mb"]


def test_lines_older_than_the_job_keeps_them_are_dropped_at_the_next_start(tmp_path, server_class, play):
    server = server_class(tmp_path, str(tmp_path / "db"))
    writer, other = (Writer(play(server, log_days=days).coordinator) for days in (1e-9, 1))
    writer.say("old")
    other.say("new")
    server.kill()
    server.start()

    until(lambda: writer.coordinator.logs(LogsRequest()).notes)
    view = writer.coordinator.logs(LogsRequest())
    assert texts(view) == []
    assert view.notes == ["the oldest 1 lines (0.0 MB) were dropped: beyond log_mb or log_days"]
    assert texts(other.coordinator.logs(LogsRequest())) == ["new"]
    server.end()


def test_a_regular_expression_that_takes_forever_is_refused_and_nobody_waits_for_it(play):
    writer = Writer(play().coordinator)
    writer.say("a" * 60 + "b")
    refused = []

    def search():
        with pytest.raises(Refused) as error:
            writer.coordinator.logs(LogsRequest(regex="(a+)+$"))
        refused.append(error.value.code)

    thread = threading.Thread(target=search)
    thread.start()
    slowest = 0.0
    while thread.is_alive():
        began = time.monotonic()
        writer.coordinator.check()
        slowest = max(slowest, time.monotonic() - began)
    assert refused == ["log-regex-too-slow"]
    assert slowest < 1.5  # it took 2 s and more
    assert texts(writer.coordinator.logs(LogsRequest(regex="a+b$"))) == ["a" * 60 + "b"]


def test_what_is_not_a_chunk_a_cursor_or_a_search_is_refused(play):
    writer = Writer(play().coordinator)
    good = writer.chunk("a")
    bad = [
        ({"data": "!"}, "log-chunk-invalid"),
        ({"data": base64.b64encode(b"x" * 99).decode()}, "log-chunk-invalid"),
        ({"worker": "w9"}, "log-worker-unknown"),
        ({"worker": "a1/x"}, "log-worker-unknown"),
    ]
    for changes, code in bad:
        chunk = wire.LogChunk(**{name: getattr(good, name) for name in good.__dataclass_fields__} | changes)
        with pytest.raises(Refused) as error:
            writer.send(chunk)
        assert (error.value.code, error.value.status) == (code, 422)
    for wanted, code in [
        ({"cursor": "x"}, "log-cursor-invalid"),
        ({"cursor": f"{2**64}.0"}, "log-cursor-invalid"),
        ({"cursor": f"0.{10**30}"}, "log-cursor-invalid"),
        ({"regex": "("}, "log-regex-invalid"),
        ({"text": "a\nb"}, "log-text-lines"),
    ]:
        with pytest.raises(Refused) as error:
            writer.coordinator.logs(LogsRequest(**wanted))
        assert (error.value.code, error.value.status) == (code, 422)
    assert writer.coordinator.logs(LogsRequest()).lines == []
