"""Which lines of a job's log are one worker's: chosen by its name, or by the rank that it has at that moment.

Pure: lines in, lines out. Ranks are told by the log itself ("w1 is rank 0 of 3"), since they change with each
generation; where it does not tell them, what the coordinator knows counts, and at last the number in the name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

_LINE = re.compile(r"\[(w\d+)\] ")
_TOLD = re.compile(r"everstep: .*\b(w\d+) is rank (\d+) of \d+")


def by_worker(lines: Iterable[str], worker: str) -> Iterator[str]:
    return (line for line in lines if line.startswith(f"[{worker}] "))


def by_rank(lines: Iterable[str], rank: int | None, known: Mapping[str, int], follows: bool) -> Iterator[str]:
    """`known`: ranks now, by worker. What a worker says before its first rank is told is that rank's."""
    if not follows:
        lines = list(lines)
        first: dict[str, int] = {}
        for line in lines:
            if told := _TOLD.match(line):
                first.setdefault(told[1], int(told[2]))
        known = {**known, **first}
    ranks = dict(known)
    for line in lines:
        if told := _TOLD.match(line):
            ranks[told[1]] = int(told[2])
        elif (said := _LINE.match(line)) and ranks.get(said[1], int(said[1][1:])) == rank:
            yield line
