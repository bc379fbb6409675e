"""One worker's output, as its agent sends it."""

from __future__ import annotations

import base64
import random
from typing import Any

from everstep import wire
from everstep.client.calls import Coordinator
from everstep.record.log_chunk import STDOUT, PrintedLine, chunk_of
from everstep.record.log_levels import level_of

NOW = 1_800_000_000.0  # a time of day far enough ahead that no line is too old


class Writer:
    """A worker of a job that is nothing but its output."""

    def __init__(self, coordinator: Coordinator, agent: str = "a0") -> None:
        self.coordinator, self.agent = coordinator, agent
        self.name = coordinator.reserve(wire.ReserveWorker(agent=agent, request=random.randbytes(8).hex())).worker
        self.next_line = self.num_bytes = 0
        self.time = NOW

    def chunk(
        self, *texts: str, rank: int = -1, stream: str = STDOUT, dropped_lines: int = 0, dropped_bytes: int = 0
    ) -> wire.LogChunk:
        lines = [PrintedLine(self.time + each, level_of(text), stream, text) for each, text in enumerate(texts)]
        self.time += len(texts)
        self.num_bytes += sum(len(text) + 1 for text in texts)
        self.next_line += dropped_lines
        chunk = wire.LogChunk(
            worker=self.name,
            first_line=self.next_line,
            stdout=self.num_bytes,
            stderr=0,
            rank=rank,
            data=base64.b64encode(chunk_of(lines).pack()).decode(),
            dropped_lines=dropped_lines,
            dropped_bytes=dropped_bytes,
        )
        self.next_line += len(texts)
        return chunk

    def send(self, *chunks: wire.LogChunk) -> wire.LogsKept:
        return self.coordinator.send_logs(self.agent, wire.LogChunks(chunks=list(chunks)))

    def say(self, *texts: str, **facts: Any) -> wire.LogsKept:
        return self.send(self.chunk(*texts, **facts))


def everything(coordinator: Coordinator, cursor: str = "", **wanted: Any) -> list[wire.LoggedLine]:
    """All pages."""
    found = list[wire.LoggedLine]()
    while True:
        view = coordinator.logs(wire.LogsRequest(cursor=cursor, **wanted))
        found += view.lines
        cursor = view.next
        if view.is_end:
            return found


def texts(view: wire.LogsView) -> list[str]:
    return [each.text for each in view.lines]
