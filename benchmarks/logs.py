"""Search a job's log at its coordinator: 10 MB to the end, and the first lines found in 1 GB, on SQLite.

The log is written into the store directly. The search is what `everstep logs` does: calls to a coordinator, page by
page. In 10 MB, the text is one that no filter can skip chunks by; in 1 GB, one that is in one chunk, far back.

    python benchmarks/logs.py [--mb 1000] [--rounds 9]

JSON: `log_search_10mb_s` (goal: 0.15), `log_regex_10mb_s` by an expression without fixed text, `log_search_1gb_first_s`
until the first lines are there (goal: 0.5), `log_levels_1gb_first_s` until the first error is there."""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from sqlalchemy import insert

from everstep import wire
from everstep.client.calls import Coordinator
from everstep.coordinator.store import log_store
from everstep.coordinator.store.log_store import DAY_S, LogStore
from everstep.coordinator.store.log_tables import LOG_BLOCKS, LOG_WRITERS
from everstep.launcher.local_coordinator import CoordinatorFiles, start_coordinator
from everstep.record.log_chunk import MAX_CHUNK_BYTES, STDOUT, Chunk, PrintedLine, chunk_of
from everstep.record.log_trigrams import build_filter

RARE = "CUDA out of memory"
NUM_KINDS = 16  # of chunks; the others are copies: to make a gigabyte of lines takes much longer than to search it


SEARCHES: dict[str, tuple[str, dict[str, Any], bool]] = {  # in which log, what, and whether only for the first lines
    "log_search_10mb_s": ("small", {"text": "loss=0.12345"}, False),
    "log_regex_10mb_s": ("small", {"regex": r"loss=0\.1234\d* |s=9{5}$"}, False),
    "log_search_1gb_first_s": ("large", {"text": RARE}, True),
    "log_levels_1gb_first_s": ("large", {"level": 40}, True),
}


def chunk(kind: int, *, rare: bool = False) -> Chunk:
    chance, lines, num_bytes, now = random.Random(kind), list[PrintedLine](), 0, time.time()
    while num_bytes < MAX_CHUNK_BYTES - 300:
        step = len(lines) + 1000 * kind
        text = (
            f"2026-11-17 19:{step % 60:02}:{step % 59:02},{step % 1000:03} INFO: train: step {step} "
            f"loss={chance.random():.6f} lr={chance.random() / 1000:.8f} tokens/s={chance.randint(10_000, 99_999)}"
        )
        if rare and len(lines) == 1000:
            text = f"torch.OutOfMemoryError: {RARE}. Tried to allocate 2.00 GiB"
        lines.append(PrintedLine(now, 40 if rare and len(lines) == 1000 else 20, STDOUT, text))
        num_bytes += len(text) + 1
    return chunk_of(lines)


def fill(store: LogStore, job: str, num_mb: int) -> int:
    """Bytes of text written."""
    usual, rare = [chunk(kind) for kind in range(NUM_KINDS)], chunk(NUM_KINDS, rare=True)
    packed = {id(each): (each, each.pack(), build_filter(each.text)) for each in [*usual, rare]}
    num_chunks = num_mb * 1_000_000 // MAX_CHUNK_BYTES + 1
    num_bytes, line, rows = 0, 0, []
    for number in range(1, num_chunks + 1):
        each, data, its_filter = packed[id(rare if number == num_chunks * 7 // 10 + 1 else usual[number % NUM_KINDS])]
        row = log_store._block(job, [[number, "w0", 0, line, each.num_lines]], each, data, time.time() + 365 * DAY_S)
        rows.append({**row, "filter": its_filter})
        line, num_bytes = line + each.num_lines, num_bytes + len(each.text)
        if len(rows) == 64 or number == num_chunks:
            with store.engine.begin() as connection:
                connection.execute(insert(LOG_BLOCKS), rows)
            rows = []
    with store.engine.begin() as connection:
        writer = {"job": job, "worker": "w0", "node": "n0", "next_line": line, "stdout": num_bytes, "stderr": 0}
        connection.execute(insert(LOG_WRITERS), [writer])
    return num_bytes


def search(coordinator: Coordinator, *, only_first: bool = False, **wanted: object) -> tuple[float, int]:
    """Seconds, and lines found."""
    began, cursor, found = time.perf_counter(), "", 0
    while True:
        view = coordinator.logs(wire.LogsRequest(cursor=cursor, **wanted))  # type: ignore[arg-type]
        found, cursor = found + len(view.lines), view.next
        if view.is_end or (only_first and found):
            return time.perf_counter() - began, found


def measure(num_mb: int, rounds: int = 9) -> dict[str, float]:
    """Medians, in seconds. `num_mb`: of the large log."""
    with tempfile.TemporaryDirectory(prefix="everstep-logs-") as folder:
        files = CoordinatorFiles(directory=Path(folder))
        store = LogStore(files.store_url, epoch=0)
        sizes = {"small": fill(store, "small", 10), "large": fill(store, "large", num_mb)}
        store.close()
        child, url = start_coordinator(files)
        with child:
            token = files.token.read_text()
            jobs = {job: Coordinator(url, token, job) for job in sizes}
            for each in jobs.values():
                each.create_job(wire.JobSpec())
            times: dict[str, list[float]] = {name: [] for name in SEARCHES}
            for _ in range(rounds):
                for name, (job, what, only_first) in SEARCHES.items():
                    seconds, found = search(jobs[job], only_first=only_first, **what)
                    times[name].append(seconds)
                    assert found or not only_first, name
            for each in jobs.values():
                each.close()
    for name, taken in times.items():
        print(f"{name:24} median {statistics.median(taken):.3f} s, {min(taken):.3f} to {max(taken):.3f}")
    return {name: statistics.median(taken) for name, taken in times.items()} | {"large_mb": sizes["large"] / 1e6}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=1000, help="size of the large log")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    print(json.dumps({name: round(value, 3) for name, value in measure(options.mb, options.rounds).items()}))


if __name__ == "__main__":
    main()
