"""Choose the lines of one worker from a job's log, by its name or by its rank at the time.

Pure: lines in, lines out. The log itself has the ranks ("w1 is rank 0 of 3"), which change with each generation; where
it has none, the coordinator's ranks count, and finally the number in the name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

_LINE = re.compile(r"\[(w\d+)\] ")
_RANK = re.compile(r"everstep: .*\b(w\d+) is rank (\d+) of \d+")


def by_worker(lines: Iterable[str], worker: str) -> Iterator[str]:
    return (line for line in lines if line.startswith(f"[{worker}] "))


def by_rank(lines: Iterable[str], rank: int | None, known: Mapping[str, int], follows: bool) -> Iterator[str]:
    """`known`: ranks now, by worker. Lines before a worker's first rank belong to that rank."""
    if not follows:
        lines = list(lines)
        first: dict[str, int] = {}
        for line in lines:
            if found := _RANK.match(line):
                first.setdefault(found[1], int(found[2]))
        known = {**known, **first}
    ranks = dict(known)
    for line in lines:
        if found := _RANK.match(line):
            ranks[found[1]] = int(found[2])
        elif (said := _LINE.match(line)) and ranks.get(said[1], int(said[1][1:])) == rank:
            yield line
