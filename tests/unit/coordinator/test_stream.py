"""Readers of a stream are positions: they resume, are told to load again, or are cut; nothing is queued for them."""

from __future__ import annotations

import asyncio

import pytest

from everstep.coordinator import stream as streams
from everstep.coordinator.stream import LIST, LiveStream
from everstep.errors import Refused


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def stream(clock):
    return LiveStream(5, clock)


def kinds(said):
    return [line.split()[1].decode() for line in said.splitlines() if line.startswith(b"event:")]


def ids(said):
    return [line.split()[1].decode() for line in said.splitlines() if line.startswith(b"id:")]


def begun(stream, *topics, after=""):
    reader = stream.open_reader([LIST, *topics], after)
    return reader, reader.begin(is_new=not after)


def test_a_reader_gets_what_its_topics_say_in_order(stream):
    reader, said = begun(stream, "a")
    begun(stream, "b")
    for topic, event in ((LIST, "one"), ("b", "none of its"), ("a", "two"), (LIST, "three")):
        stream.publish(topic, event, {})
    assert kinds(said) == ["hello"]
    assert kinds(reader.take()) == ["one", "two", "three"] and reader.take() == b""


def test_what_no_one_follows_is_not_kept(stream):
    stream.publish("a", "lost", {})
    reader, said = begun(stream, "a")
    assert kinds(said) == ["hello"] and reader.take() == b""


def test_a_reader_goes_on_after_the_last_id_that_it_has(stream):
    reader, _ = begun(stream, "a")
    stream.publish("a", "one", {})
    stream.publish("a", "two", {})
    first = ids(reader.take())[0]
    reader.close()
    stream.publish(LIST, "three", {})
    again, said = begun(stream, "a", after=first)
    assert kinds(said) == ["hello", "two", "three"]
    stream.publish("a", "four", {})
    assert kinds(again.take()) == ["four"]


@pytest.mark.parametrize("after", ["4-1", "5-999", "5", "5-x", "x", "5--1", "5-" + "9" * 30])
def test_an_id_that_is_not_of_this_process_means_loading_again(stream, after):
    begun(stream, "a")
    assert kinds(begun(stream, "a", after=after)[1]) == ["hello", "reload"]


def test_a_topic_is_forgotten_a_while_after_its_last_reader(stream, clock):
    reader, _ = begun(stream, "a")
    last = stream.last_id
    reader.close()
    clock.now = streams.KEPT_S - 1
    stream.wake()
    assert stream.is_followed("a")
    clock.now = streams.KEPT_S + 1
    stream.wake()
    assert not stream.is_followed("a") and not stream.has_topics.is_set()
    assert kinds(begun(stream, "a", after=last)[1]) == ["hello", "reload"]


def test_a_reader_may_come_when_its_topics_are_due_to_be_forgotten(stream, clock):
    reader, said = begun(stream, "a")
    reader.close()
    clock.now = streams.KEPT_S + 1  # and no one has looked since
    again, said = begun(stream, "a", after=ids(said)[-1])
    assert kinds(said) == ["hello", "reload"]
    stream.publish("a", "one", {})
    assert kinds(again.take()) == ["one"]


def test_a_reader_that_falls_behind_what_is_kept_is_cut_and_then_loads_again(stream, monkeypatch):
    monkeypatch.setattr(streams, "MAX_TOPIC_BYTES", 1000)
    reader, said = begun(stream, "a")
    for _ in range(20):
        stream.publish("a", "much", "x" * 100)
    assert reader.take() is None
    reader.close()
    again, said = begun(stream, "a", after=ids(said)[-1])
    assert kinds(said) == ["hello", "reload"] and b'"jobs":["a"],"is_list":false' in said
    assert again.take() == b""


@pytest.mark.parametrize(
    ("topic", "again"),
    [("a", b'{"jobs":["a"],"is_list":false,"topics":[]}'), (LIST, b'{"jobs":[],"is_list":true,"topics":[]}')],
)
def test_instead_of_a_message_that_is_too_large_all_readers_load_its_topic_again(stream, topic, again):
    reader, _ = begun(stream, "a")
    stream.publish(topic, "before", {})
    num_bytes = stream.publish(topic, "huge", {"nodes": "x" * streams.MAX_TOPIC_BYTES})
    stream.publish(topic, "after", {})
    said = reader.take()
    assert kinds(said) == ["before", "reload", "after"] and again in said
    assert num_bytes < 200


def test_much_at_once_is_taken_in_parts(stream, monkeypatch):
    monkeypatch.setattr(streams, "MAX_TAKEN_BYTES", 500)
    reader, _ = begun(stream, "a")
    for _ in range(10):
        stream.publish("a", "some", "x" * 100)
    parts = []
    while taken := reader.take():
        parts.append(len(taken))
        assert len(taken) < 800
    assert len(parts) > 1 and sum(parts) > 1000


def test_topics_are_bounded(stream, monkeypatch):
    monkeypatch.setattr(streams, "MOST_TOPICS", 3)
    begun(stream, "a", "b")
    with pytest.raises(Refused) as refused:
        begun(stream, "c")
    assert (refused.value.status, refused.value.code) == (503, "too-many-followed")


def test_topics_without_a_reader_make_room_and_the_one_left_first_goes(stream, clock, monkeypatch):
    monkeypatch.setattr(streams, "MOST_TOPICS", 4)
    for name in ("a", "b", "c"):
        clock.now += 1
        begun(stream, name)[0].close()
    begun(stream, "a", "d")
    assert stream.topics() == [LIST, "a", "c", "d"]


def test_the_end_wakes_all_readers(stream):
    reader, _ = begun(stream)
    stream.close()
    assert stream.is_closed and asyncio.run(asyncio.wait_for(reader.has_news.wait(), 5))
