"""The end of a log is read without its beginning, and what comes before it in pages, each line once: on SQLite and on
PostgreSQL."""

from __future__ import annotations

import random

import pytest

from everstep.wire import MAX_LINES, LogsRequest
from lab.log_writer import Writer, everything, texts


@pytest.fixture(scope="module")
def server(server_on_each_store):
    return server_on_each_store


def test_the_last_lines_come_in_order_and_reading_continues_on_both_sides(play):
    writer = Writer(play().coordinator)
    coordinator = writer.coordinator
    for number in range(5):
        writer.say(f"{number} a", f"{number} b")

    end = coordinator.logs(LogsRequest(tail=3))
    assert texts(end) == ["3 b", "4 a", "4 b"] and end.is_end
    before = coordinator.logs(LogsRequest(tail=4, cursor=end.previous))
    assert texts(before) == ["1 b", "2 a", "2 b", "3 a"]
    assert texts(coordinator.logs(LogsRequest(cursor=before.next))) == texts(end)
    first = coordinator.logs(LogsRequest(tail=4, cursor=before.previous))
    assert texts(first) == ["0 a", "0 b", "1 a"] and first.previous == ""

    writer.say("new")
    assert texts(coordinator.logs(LogsRequest(cursor=end.next))) == ["new"]


def test_a_tail_of_nothing_is_empty_and_does_not_wait(play):
    writer = Writer(play().coordinator)
    empty = writer.coordinator.logs(LogsRequest(tail=10, wait_s=10))
    assert (empty.lines, empty.previous, empty.is_end) == ([], "", True)
    writer.say("first")
    assert texts(writer.coordinator.logs(LogsRequest(cursor=empty.next))) == ["first"]


def test_the_last_lines_found_come_with_their_context_once(play):
    coordinator, wanted = play().coordinator, (5, 50, 53, 54)
    one, two = Writer(coordinator), Writer(coordinator)
    for number in range(70):  # more than wait to be packed together
        one.say(f"one {number}{' here' if number in wanted else ''}")
        two.say(f"two {number}")

    def found(view):
        return [(each.line, not each.is_context) for each in view.lines if each.worker == one.name]

    end = coordinator.logs(LogsRequest(text="here", context=2, tail=3))
    assert found(end) == [(line, line in wanted) for line in range(48, 57)]
    before = coordinator.logs(LogsRequest(text="here", context=2, tail=3, cursor=end.previous))
    assert found(before) == [(line, line in wanted) for line in range(3, 8)]
    assert before.previous == "" and len(before.lines) == 5
    assert texts(coordinator.logs(LogsRequest(worker=two.name, text="two 6", tail=2))) == ["two 68", "two 69"]


def test_pages_from_the_end_have_each_line_once_while_chunks_come_and_are_packed_together(play):
    coordinator, chance = play().coordinator, random.Random(1)
    writers = [Writer(coordinator) for _ in range(3)]

    def say(number):
        writer = chance.choice(writers)
        writer.say(*(f"{writer.name} {number} {each}" for each in range(chance.randint(1, 3))))

    for number in range(40):
        say(number)
    end = view = coordinator.logs(LogsRequest(tail=3))
    found, number = view.lines, 40
    while view.previous:
        say(number := number + 1)
        view = coordinator.logs(LogsRequest(tail=chance.randint(1, 4), cursor=view.previous))
        found = view.lines + found
    while number < 140:
        say(number := number + 1)
    found += everything(coordinator, cursor=end.next)

    assert [(each.worker, each.line) for each in found] == [
        (each.worker, each.line) for each in everything(coordinator)
    ]


def test_a_long_page_ends_before_it_is_too_large_and_says_where_to_continue(play):
    writer = Writer(play().coordinator)
    for number in range(16):
        writer.say(*(f"{number} {line} {'x' * 990}" for line in range(100)))

    end = writer.coordinator.logs(LogsRequest(tail=MAX_LINES))
    assert 900 < len(end.lines) < 1600 and end.previous
    before = writer.coordinator.logs(LogsRequest(tail=MAX_LINES, cursor=end.previous))
    assert [each.line for each in before.lines + end.lines] == list(range(1600))
