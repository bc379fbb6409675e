"""The log's store by itself: what it knows after a failure, whose it is, and how old a line is."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import event
from sqlalchemy.exc import OperationalError

from everstep.coordinator.store.log_reader import LogReader
from everstep.coordinator.store.log_store import DAY_S, LogBounds, LogStore, NewLines
from everstep.record.log_chunk import STDOUT, PrintedLine, chunk_of
from everstep.storage.database import StoreError, StoreTaken
from everstep.wire import LogsRequest

BOUNDS = LogBounds(max_bytes=1 << 30, days=30)
PATIENCE_S = 60.0  # a call has a fraction of a second, which a busy machine may take for the first block


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LogStore]:
    store = LogStore(str(tmp_path / "store.db"), epoch=3)
    yield store
    store.close()


def line(text: str, number: int = 0, *, printed_at: float = 0.0) -> NewLines:
    chunk = chunk_of([PrintedLine(printed_at or time.time(), 20, STDOUT, text)])
    position = {"first_line": number, "stdout": 10 * (number + 1), "stderr": 0}
    return NewLines(
        worker="w0", node="n0", rank=0, **position, dropped_lines=0, dropped_bytes=0, chunk=chunk, data=chunk.pack()
    )


def keep(store: LogStore, *lines: NewLines) -> int:
    return store.keep("job", lines, ["w0"], BOUNDS)["w0"].next_line


def texts(store: LogStore) -> list[str]:
    return [each.text for each in LogReader(store.engine).read("job", LogsRequest(), budget_s=PATIENCE_S).lines]


def test_a_commit_that_took_place_although_it_failed_is_known_afterwards(store: LogStore) -> None:
    keep(store, line("one"))

    @event.listens_for(store.engine, "commit")
    def fail_late(connection) -> None:  # as a connection does that is lost before the reply
        connection.connection.driver_connection.commit()
        raise OperationalError("COMMIT", {}, Exception("the connection was lost"))

    with pytest.raises(StoreError, match="lost"):
        keep(store, line("two", 1))
    event.remove(store.engine, "commit", fail_late)

    assert keep(store, line("two", 1)) == 2  # sent again: it is there
    assert keep(store, line("three", 2)) == 3
    assert texts(store) == ["one", "two", "three"]


def test_what_failed_while_blocks_were_packed_is_packed_later(store: LogStore) -> None:
    keep(store, *(line(f"{number}", number) for number in range(5)))

    @event.listens_for(store.engine, "commit")
    def fail(_connection) -> None:
        raise OperationalError("COMMIT", {}, Exception("the disk is full"))

    with pytest.raises(StoreError, match="full"):
        store.tidy("job", BOUNDS, is_all=True)
    event.remove(store.engine, "commit", fail)

    keep(store, line("5", 5))
    store.tidy("job", BOUNDS, is_all=True)
    assert texts(store) == ["0", "1", "2", "3", "4", "5"]


def test_a_coordinator_that_a_later_one_has_replaced_writes_nothing_more(store: LogStore, tmp_path: Path) -> None:
    keep(store, line("ours"))
    later = LogStore(str(tmp_path / "store.db"), epoch=4)
    keep(later, line("theirs", 1))

    for write in (
        lambda: store.tidy("job", BOUNDS, is_all=True),
        lambda: keep(store, line("too late", 2)),
        lambda: store.drop_expired(time.time() + 99 * DAY_S),
        lambda: LogStore(str(tmp_path / "store.db"), epoch=3),
    ):
        with pytest.raises(StoreTaken, match="another coordinator"):
            write()
    assert texts(later) == ["ours", "theirs"]
    later.close()


@pytest.mark.parametrize("clock_s", [-90 * DAY_S, 90 * DAY_S])
def test_a_line_is_as_old_as_its_arrival_whatever_its_nodes_clock_says(store: LogStore, clock_s: float) -> None:
    keep(store, line("a", printed_at=time.time() + clock_s), line("b", 1, printed_at=time.time() + clock_s))
    store.tidy("job", BOUNDS, is_all=True)  # also when it is packed with others

    store.drop_expired(time.time() + 29 * DAY_S)
    assert texts(store) == ["a", "b"]
    store.drop_expired(time.time() + 31 * DAY_S)
    assert texts(store) == []


@pytest.mark.parametrize("tail", [0, 1000], ids=["forward", "back"])
def test_a_search_with_context_stops_within_a_block_once_its_time_is_up(store: LogStore, tail: int) -> None:
    """And continues there: each line is found once."""
    keep(store, *(line(f"hit {number}", number) for number in range(200)))
    store.tidy("job", BOUNDS, is_all=True)
    reader, wanted, pages = LogReader(store.engine), LogsRequest(text="hit", context=2, tail=tail), []
    for _ in range(20):
        view = reader.read("job", wanted, budget_s=-1.0)
        pages.append([each.line for each in view.lines if not each.is_context])
        if not (view.previous if tail else view.lines):
            break
        wanted = replace(wanted, cursor=view.previous if tail else view.next)
    found = [numbers for numbers in pages if numbers]
    assert len(found) > 2
    assert sorted(each for numbers in found for each in numbers) == [*range(200)]


def test_context_opens_no_block_for_every_line_found(store: LogStore) -> None:
    keep(store, *(line(f"hit {number}", number) for number in range(12)))
    opened = []

    @event.listens_for(store.engine, "before_cursor_execute")
    def note(_connection, _cursor, statement, *_rest) -> None:
        opened.extend([statement] if ".data" in statement else [])

    lines = LogReader(store.engine).read("job", LogsRequest(text="hit", context=3), budget_s=PATIENCE_S).lines
    assert len(lines) == 12 and len(opened) <= 2 * 12
