"""Whose word counts at a step: that of the newest history that has reported at or before it.

A history is one line of training: an attempt to start all workers, and a generation in it. A newer one that reports a
step has trained from there on again, perhaps from a checkpoint, so older points from that step on are void. A late
report of an older history still counts at steps before that, which were trained once. Pure."""

from __future__ import annotations

from collections.abc import Sequence

MOST_KEPT = 16

Histories = list[tuple[int, int]]  # number and first step, both ascending


def number_of(attempt: int, generation: int) -> int:
    """Later attempts count more than later generations. `attempt` -1: none."""
    return attempt + 1 << 32 | generation


def counts(histories: Sequence[tuple[int, int]], history: int, step: int) -> bool:
    """Whether a report of this history at this step may be kept."""
    owner = next((number for number, since in reversed(histories) if since <= step), None)
    if owner is None and len(histories) == MOST_KEPT:  # earlier ones were forgotten
        owner = histories[0][0]
    return owner is None or owner <= history


def begins(histories: Sequence[tuple[int, int]], history: int) -> bool:
    """Whether this is a history that has not reported yet, and the newest."""
    return not histories or history > histories[-1][0]


def begun(histories: Sequence[tuple[int, int]], history: int, step: int) -> Histories:
    """With this newest history, which begins at `step`."""
    return [*(each for each in histories if each[1] < step), (history, step)][-MOST_KEPT:]
