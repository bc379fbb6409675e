"""Regular expressions in a process of their own: one that takes too long is killed with it.

Python's `re` keeps the interpreter to itself while it matches, so a thread would not do. One process per thread that
searches; it stays for the next search."""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Callable

from everstep.errors import Refused, TemporaryError
from everstep.process import NOWHERE, Child, program_command
from everstep.record.log_regex import LENGTH
from everstep.record.log_search import Search

MATCH_S = 2.0  # for one chunk, of which a plain expression needs some milliseconds
_START_S = 30.0  # the first reply includes the start of Python, on a busy machine
_PIECE = 1 << 16


class RegexProcess:
    """For one thread: the kernel ends the process with it."""

    def __init__(self, start_s: float = _START_S) -> None:
        self._child: Child | None = None
        self._ours = (-1, -1)
        self._start_s, self._is_answered = start_s, True

    def searching(self, regex: str) -> Search:
        def search(text: bytes) -> list[int]:
            return self._ask(regex, text)

        return search

    def close(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child = None
            for descriptor in self._ours:
                os.close(descriptor)

    def _ask(self, regex: str, text: bytes) -> list[int]:
        self._make_ready()
        try:
            found: list[int] = json.loads(self._exchange(regex, text, MATCH_S))
            return found
        except (TimeoutError, BrokenPipeError, EOFError):
            raise Refused(
                f"the regular expression took longer than {MATCH_S:g} s for {len(text)} bytes",
                status=422,
                hint="repetitions inside repetitions, such as (a+)+, take forever",
                code="log-regex-too-slow",
            ) from None
        finally:
            self._close_unless_answered()

    def _make_ready(self) -> None:
        if self._child is not None:
            return
        self._start()
        try:
            self._exchange("", b"", self._start_s)
        except (TimeoutError, BrokenPipeError, EOFError):
            raise TemporaryError(
                f"the process for regular expressions did not start within {self._start_s:g} s", code="log-regex-busy"
            ) from None
        finally:
            self._close_unless_answered()

    def _close_unless_answered(self) -> None:
        """A reply that comes too late must not be taken for that to the next question."""
        if not self._is_answered:
            self.close()

    def _start(self) -> None:
        requests, asks = os.pipe()
        answers, replies = os.pipe()
        theirs = (requests, replies)
        try:
            command = program_command("everstep.record.log_regex", str(requests), str(replies))
            self._child = Child.start(command, output=NOWHERE, descriptors=theirs)
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        self._ours = (asks, answers)
        for descriptor in self._ours:
            os.set_blocking(descriptor, False)

    def _exchange(self, regex: str, text: bytes, timeout_s: float) -> bytes:
        deadline, self._is_answered = time.monotonic() + timeout_s, False
        asks, answers = self._ours
        pattern = regex.encode()
        request = LENGTH.pack(len(pattern)) + pattern + LENGTH.pack(len(text)) + text
        _repeat(lambda at: os.write(asks, request[at : at + _PIECE]), len(request), asks, select.POLLOUT, deadline)
        (length,) = LENGTH.unpack(_read(answers, LENGTH.size, deadline))
        reply = _read(answers, length, deadline)
        self._is_answered = True
        return reply


def _read(descriptor: int, num_bytes: int, deadline: float) -> bytes:
    parts: list[bytes] = []

    def read(at: int) -> int:
        parts.append(os.read(descriptor, min(_PIECE, num_bytes - at)))
        if not parts[-1]:
            raise EOFError
        return len(parts[-1])

    _repeat(read, num_bytes, descriptor, select.POLLIN, deadline)
    return b"".join(parts)


def _repeat(act: Callable[[int], int], num_bytes: int, descriptor: int, what: int, deadline: float) -> None:
    """Until this many bytes are through, or the time is up."""
    done, poll = 0, select.poll()
    poll.register(descriptor, what)
    while done < num_bytes:
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise TimeoutError
        done += act(done)
