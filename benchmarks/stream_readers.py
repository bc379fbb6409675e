"""Readers of the live stream of a job, as browsers are: one process for all of them, so that reading costs the others
nothing. For `benchmarks/metrics.py`."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import uvloop


class _Reader(asyncio.Protocol):
    def __init__(self, head: bytes) -> None:
        self._head, self.num_bytes, self.num_events, self.is_cut = head, 0, 0, False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.write(self._head)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        self.num_bytes += len(data)
        self.num_events += data.count(b"event: ")

    def connection_lost(self, error: Exception | None) -> None:
        self.is_cut = True


async def _read(url: str, token: str, job: str, number: int) -> None:
    """Until stdin ends. Prints what was read."""
    where = urlsplit(url)
    head = f"GET /v1/stream?jobs={job} HTTP/1.1\r\nhost: {where.netloc}\r\nauthorization: Bearer {token}\r\n\r\n"
    loop = asyncio.get_running_loop()
    made = [
        await loop.create_connection(lambda: _Reader(head.encode()), where.hostname, where.port) for _ in range(number)
    ]
    readers = [reader for _, reader in made]
    while not all(reader.num_events for reader in readers):
        await asyncio.sleep(0.01)
    print("ready", flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    found = {
        "reader_events": sum(each.num_events for each in readers) / number,
        "reader_bytes": sum(each.num_bytes for each in readers) / number,
        "readers_cut": sum(each.is_cut for each in readers),
    }
    print(json.dumps(found), flush=True)


@contextmanager
def following(url: str, token: str, job: str, number: int) -> Iterator[dict[str, float]]:
    """Readers of a job's stream, in a process of their own; afterwards, what each of them has read."""
    process = subprocess.Popen(
        [sys.executable, __file__, url, job, str(number)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    found: dict[str, float] = {}
    try:
        process.stdin.write(f"{token}\n")
        process.stdin.flush()
        assert process.stdout.readline() == "ready\n"
        yield found
        found |= json.loads(process.communicate()[0])
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    url, job, number = sys.argv[1:]
    uvloop.run(_read(url, sys.stdin.readline().strip(), job, int(number)))
