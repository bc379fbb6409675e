"""Numbered messages that many readers follow and resume: kept in memory once, however many readers there are.

A topic is the list of jobs, one job, or something else, with a slash in its name (`experiment_feed`). A reader is a
position, not a queue: it takes what comes after the last number that it has, so a slow one costs nothing, and one that
falls behind what is kept is cut. It comes back with that number, and gets what it has missed, or must load a topic
again. Numbers of another process, which another epoch shows, say nothing. Knows nothing of HTTP, and not what the
messages mean. One event loop only."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from everstep.errors import Refused
from everstep.wire import to_json

SLASH = "/"  # no job has one in its name
LIST = ""  # the topic of the list of jobs: never the name of a job
MAX_TOPIC_BYTES = 1 << 19
MAX_MESSAGE_BYTES = MAX_TOPIC_BYTES // 4  # so that all kinds of a moment fit, and only who is slow falls behind
MOST_TOPICS = 200
KEPT_S = 60.0  # that a topic continues without a reader, who may come back
MAX_TAKEN_BYTES = 1 << 18  # at a time


@dataclass(kw_only=True, slots=True)
class _Topic:
    since: int  # all later messages are here
    messages: deque[tuple[int, bytes]] = field(default_factory=deque)
    num_bytes: int = 0
    num_readers: int = 0
    left_at: float = 0.0  # when the last reader went


class LiveStream:
    def __init__(self, epoch: int, now: Callable[[], float] = time.monotonic) -> None:
        self._epoch, self._now = epoch, now
        self._number = self._woken = 0
        self._taken: dict[tuple[Sequence[str], int], tuple[int, bytes, bool]] = {}  # those at one place share it
        self._topics: dict[str, _Topic] = {}
        self._readers: set[Reader] = set()
        self.has_topics = asyncio.Event()  # also those whose readers may come back
        self.is_closed = False

    @property
    def last_id(self) -> str:
        return f"{self._epoch}-{self._number}"

    @property
    def num_readers(self) -> int:
        return len(self._readers)

    def is_followed(self, topic: str) -> bool:
        return topic in self._topics

    def topics(self) -> Sequence[str]:
        """Those that someone reads, or has read a moment ago."""
        return [*self._topics]

    def publish(self, topic: str, event: str, data: Any) -> int:
        """Returns the bytes of the message. Instead of one that is too large, readers get the word to load the topic
        again. `wake` makes readers look."""
        if (found := self._topics.get(topic)) is None:
            return 0
        self._number += 1
        self._taken.clear()
        message = encode(event, data, self.last_id)
        if len(message) > MAX_MESSAGE_BYTES:
            message = encode("reload", _again([topic]), self.last_id)
        found.messages.append((self._number, message))
        found.num_bytes += len(message)
        while found.num_bytes > MAX_TOPIC_BYTES:
            found.since, dropped = found.messages.popleft()
            found.num_bytes -= len(dropped)
        return len(message)

    def wake(self) -> None:
        if self._woken != self._number:
            self._woken = self._number
            for reader in self._readers:
                reader.has_news.set()
        self._forget_topics()

    def close(self) -> None:
        self.is_closed = True
        for reader in self._readers:
            reader.has_news.set()

    def open_reader(self, topics: Iterable[str], after: str) -> Reader:
        """`after`: the last ID that the reader has; empty: none. Close it."""
        names = tuple(dict.fromkeys(topics))
        self._forget_topics()
        new = [name for name in names if name not in self._topics]
        self._make_room(len(new), names)
        if len(self._topics) + len(new) > MOST_TOPICS:
            text = f"{len(self._topics)} jobs and others are being followed, the limit is {MOST_TOPICS}"
            raise Refused(text, status=503, code="too-many-followed")
        if new:
            self._taken.clear()
            self._number += 1  # so that no earlier ID means that these were read
        for name in new:
            self._topics[name] = _Topic(since=self._number)
        reader = Reader(self, names, self._number_of(after))
        for name in names:
            self._topics[name].num_readers += 1
        self._readers.add(reader)
        self.has_topics.set()
        return reader

    def _number_of(self, after: str) -> int | None:
        """None: nothing is known of what this reader has."""
        epoch, _, number = after.partition("-")
        is_ours = epoch == str(self._epoch) and number.isascii() and number.isdigit() and len(number) < 18
        return int(number) if is_ours and int(number) <= self._number else None

    def _close_reader(self, reader: Reader) -> None:
        if reader not in self._readers:
            return
        self._readers.discard(reader)
        for name in reader.topics:
            topic = self._topics[name]
            topic.num_readers -= 1
            topic.left_at = self._now()

    def _make_room(self, num_new: int, wanted: Sequence[str]) -> None:
        """Of the topics without a reader, the ones that were left first go."""
        num_over = len(self._topics) + num_new - MOST_TOPICS
        left = [name for name, each in self._topics.items() if not each.num_readers and name not in wanted]
        for name in sorted(left, key=lambda name: self._topics[name].left_at)[: max(num_over, 0)]:
            del self._topics[name]

    def _forget_topics(self) -> None:
        before = self._now() - KEPT_S
        for name in [name for name, each in self._topics.items() if not each.num_readers and each.left_at < before]:
            del self._topics[name]
        if not self._topics:
            self.has_topics.clear()


class Reader:
    def __init__(self, stream: LiveStream, topics: Sequence[str], after: int | None) -> None:
        self.topics, self.has_news = topics, asyncio.Event()
        self._stream, self._number = stream, after

    def close(self) -> None:
        self._stream._close_reader(self)

    def begin(self, *, is_new: bool) -> bytes:
        """The first words: what was missed, and which topics must be loaded again. `is_new`: it has nothing yet."""
        stream, topics = self._stream, self._stream._topics
        hello = {"id": stream.last_id, "jobs": _jobs(self.topics), "topics": _others(self.topics)}
        if is_new:
            self._number = stream._number
            return encode("hello", hello, stream.last_id)
        after, self._number = self._number, stream._number
        missed = [name for name in self.topics if after is None or topics[name].since > after]
        found = [] if after is None else _later(after, (topics[name] for name in self.topics if name not in missed))
        said = [encode("hello", hello), *(message for _, message in found)]
        if missed:
            said.append(encode("reload", _again(missed), stream.last_id))
        return b"".join(said)

    def take(self) -> bytes | None:
        """The new messages in order, some of them if there are many; None: some were dropped."""
        topics = [self._stream._topics[name] for name in self.topics]
        assert self._number is not None
        if any(topic.since > self._number for topic in topics):
            return None
        shared, place = self._stream._taken, (self.topics, self._number)
        if place not in shared:
            shared[place] = self._gather(topics, self._number)
        self._number, taken, has_more = shared[place]
        if has_more:
            self.has_news.set()
        return taken

    def _gather(self, topics: Sequence[_Topic], number: int) -> tuple[int, bytes, bool]:
        """Up to which number, the messages, and whether there are more."""
        taken: list[bytes] = []
        num_bytes = 0
        for each, message in _later(number, topics):
            if num_bytes > MAX_TAKEN_BYTES:
                return number, b"".join(taken), True
            taken.append(message)
            num_bytes += len(message)
            number = each
        return self._stream._number, b"".join(taken), False  # those in between were of other topics


def _later(number: int, topics: Iterable[_Topic]) -> list[tuple[int, bytes]]:
    """The messages after this number, in order."""
    found: list[tuple[int, bytes]] = []
    for topic in topics:
        for each in reversed(topic.messages):
            if each[0] <= number:
                break
            found.append(each)
    return sorted(found)


def _again(topics: Sequence[str]) -> dict[str, Any]:
    """What a reader must load again."""
    return {"jobs": _jobs(topics), "is_list": LIST in topics, "topics": _others(topics)}


def is_job(topic: str) -> bool:
    return SLASH not in topic


def _jobs(topics: Iterable[str]) -> list[str]:
    return [name for name in topics if name != LIST and is_job(name)]


def _others(topics: Iterable[str]) -> list[str]:
    return [name for name in topics if not is_job(name)]


def encode(event: str, data: Any, number: str = "") -> bytes:
    """As server-sent events have it; JSON has no newline in it. `data`: also as JSON already."""
    named, encoded = f"id: {number}\n" if number else "", data if isinstance(data, bytes) else to_json(data)
    return f"event: {event}\n{named}data: ".encode() + encoded + b"\n\n"
