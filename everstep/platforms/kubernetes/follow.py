"""The lines of a job's pods, as they are printed, those of later pods too."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from everstep.errors import TemporaryError
from everstep.platforms.base import LogLine
from everstep.platforms.kubernetes.cluster import Denied, Namespace, Object

T = TypeVar("T")

_LOOK_S = 0.5
_HAS_BEGUN = ("Running", "Succeeded", "Failed")


def logs_of(cluster: Namespace, pods: Callable[[], list[Object]]) -> Iterator[LogLine]:
    """All that they have printed up to now."""
    for pod in pods():
        if _has_begun(pod):
            name = pod["metadata"]["name"]
            try:
                yield from (LogLine(node=name, text=line) for line in cluster.log(name, follow=False))
            except (Denied, TemporaryError) as error:
                yield LogLine(node=name, text=f"everstep: cannot read its log: {error.message}")


def followed(cluster: Namespace, pods: Callable[[], list[Object]], *, is_over: Callable[[], bool]) -> Iterator[LogLine]:
    """Until it is over and all have been read to their end."""
    lines: queue.Queue[LogLine] = queue.Queue(maxsize=10_000)
    readers: dict[str, threading.Thread] = {}
    while True:
        is_last = _quietly(is_over, False)
        nothing: list[Object] = []
        for pod in _quietly(pods, nothing):
            name = pod["metadata"]["name"]
            if name not in readers and _has_begun(pod):
                readers[name] = threading.Thread(target=_read, args=(cluster, name, lines), daemon=True)
                readers[name].start()
        yield from _waiting(lines, _LOOK_S)
        if is_last:
            # The log of a lost node never reports its end.
            deadline = time.monotonic() + 10 * _LOOK_S
            while any(each.is_alive() for each in readers.values()) and time.monotonic() < deadline:
                yield from _waiting(lines, 0.1)
            yield from _waiting(lines, 0.0)
            return


def _waiting(lines: queue.Queue[LogLine], seconds: float) -> Iterator[LogLine]:
    deadline = time.monotonic() + seconds
    while True:
        try:
            yield lines.get(timeout=max(0.001, deadline - time.monotonic()))
        except queue.Empty:
            return


def _read(cluster: Namespace, name: str, lines: queue.Queue[LogLine]) -> None:
    try:
        for line in cluster.log(name, follow=True):
            lines.put(LogLine(node=name, text=line))
    except (Denied, TemporaryError) as error:
        lines.put(LogLine(node=name, text=f"everstep: cannot read its log: {error.message}"))


def _quietly(call: Callable[[], T], otherwise: T) -> T:
    try:
        return call()
    except TemporaryError:
        return otherwise


def _has_begun(pod: Object) -> bool:
    return pod.get("status", {}).get("phase") in _HAS_BEGUN
