"""What is to be said to the desk with the next call: reports, returns, failures; gathered until it goes.

A call brings at most so many parts; what is more goes with the next ones. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from everstep.wire import FailedPart, LeasePart

MOST_PARTS = 4096  # in one call


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """The content of one call."""

    done: tuple[LeasePart, ...] = ()
    returned: tuple[LeasePart, ...] = ()
    failed: tuple[FailedPart, ...] = ()
    settles: bool = False
    on_durable: tuple[Callable[[], None], ...] = ()
    is_urgent: bool = False

    def __add__(self, more: Message) -> Message:
        return Message(
            done=joined((*self.done, *more.done)),
            returned=self.returned + more.returned,
            failed=self.failed + more.failed,
            settles=self.settles or more.settles,
            on_durable=self.on_durable + more.on_durable,
            is_urgent=self.is_urgent or more.is_urgent,
        )

    @property
    def is_empty(self) -> bool:
        return self == Message()


class LeaseReports:
    def __init__(self) -> None:
        self.content = Message()
        self.since = 0.0  # when the oldest of it came

    def add(self, message: Message, now: float) -> None:
        if self.content.is_empty:
            self.since = now
        self.content = self.content + message

    def take(self) -> Message:
        """The content of the next call. That it settles, and that all is durable, is said with the last of it."""
        content = self.content
        if len(content.done) > MOST_PARTS:
            self.content = replace(content, done=content.done[MOST_PARTS:])
            return Message(done=content.done[:MOST_PARTS])
        self.content = Message()
        return content


def joined(parts: Iterable[LeasePart]) -> tuple[LeasePart, ...]:
    """The same samples in as few parts as possible; what is said twice is said once."""
    found: list[LeasePart] = []
    for part in sorted(parts, key=lambda each: (each.lease, each.start)):
        last = found[-1] if found else None
        if last is not None and last.lease == part.lease and part.start <= last.start + last.count:
            stop = max(last.start + last.count, part.start + part.count)
            found[-1] = LeasePart(lease=last.lease, start=last.start, count=stop - last.start)
        else:
            found.append(part)
    return tuple(found)
