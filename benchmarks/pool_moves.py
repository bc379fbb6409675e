"""What a move of a slot cost its two trials, by the times of their micro-batches, and what it waited for, by events.

A stop: a worker that stays in its trial waits between two steps, longer than it usually does there: for the others, and
for the sum of gradients. A slot is useful again with the newcomer's first micro-batch that counts. Before that, it runs
one whose result is thrown away, while the others train."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

LEFT_S = 2.0  # a process that has begun no micro-batch for this time has left
USUAL_S = 4.0  # what is usual is measured for this long before a move

Marks = Mapping[str, np.ndarray]  # by process: rows of the time at which a micro-batch began, and the step's number


@dataclass(frozen=True, kw_only=True, slots=True)
class Stop:
    """Of a trial: medians over its workers that were there before and after."""

    longest_s: float  # between two steps
    usual_s: float

    @property
    def added_s(self) -> float:
        return max(self.longest_s - self.usual_s, 0.0)


def stop_of(marks: Marks, began: float, ended: float) -> Stop:
    longest, usual = [], []
    for rows in marks.values():
        times, steps = rows[:, 0], rows[:, 1]
        if times[0] >= began - USUAL_S or times[-1] <= ended - 1.0:
            continue
        is_between = np.diff(steps) != 0
        since, waits = times[:-1][is_between], np.diff(times)[is_between]
        before, during = waits[(since >= began - USUAL_S) & (since < began)], waits[(since >= began) & (since < ended)]
        if len(before) and len(during):
            longest.append(float(max(during)))
            usual.append(float(median(before)))
    return Stop(longest_s=median(longest), usual_s=median(usual))


def idle_s(trials: Iterable[Marks], began: float, ended: float) -> float | None:
    """From the last micro-batch of the process that left to the first one that counts of the process that came. None:
    a slot came that was free before."""
    runs = [rows[:, 0] for marks in trials for rows in marks.values()]
    # Its last micro-batch may have begun before the order.
    left = [times[-1] for times in runs if began - LEFT_S / 2 < times[-1] < ended - LEFT_S]
    came = [times[1] for times in runs if began < times[0] < ended and len(times) > 1]
    return float(came[0] - left[0]) if len(left) == len(came) == 1 else None


# --- what the time is spent with ----------------------------------------------------------------------


def explained(events: Path, began: float, ended: float) -> list[str]:
    """A line for each regroup, and one for the worker that came. Times are milliseconds since the last commit of any
    member, or since the order to end."""
    found = list(_within(events, began, ended))
    lines = []
    for formed in _named(found, "generation.formed"):
        if formed["worker"] or formed["generation"] == 1:
            continue
        generation = formed["generation"]
        members = {
            each["pid"]
            for each in _named(found, "generation.formed")
            if each["worker"] and (each["generation"], each["reason"]) == (generation, formed["reason"])
        }
        settled = [each for each in _named(found, "regroup.settled") if each["generation"] == generation]
        settled = [each for each in settled if each["pid"] in members]
        commits = [
            each["t"] for each in _named(found, "step.committed") if each["pid"] in members and each["t"] < formed["t"]
        ]
        lines += _regroup(found, formed, members, max(commits), settled) if commits and settled else []
    return lines + _newcomer(found)


def _regroup(
    found: Sequence[Mapping[str, Any]],
    formed: Mapping[str, Any],
    members: set[int],
    since: float,
    settled: Sequence[Mapping[str, Any]],
) -> list[str]:
    generation, job = formed["generation"], formed["job"]
    closed = [
        each["t"]
        for each in _named(found, "generation.closed")
        if not each["worker"] and (each["job"], each["generation"]) == (job, generation - 1)
    ]
    known, met = (
        [each["t"] for each in _named(found, name) if each["pid"] in members and each["generation"] == generation]
        for name in ("generation.formed", "backend.chosen")
    )
    steps = [each["t"] for each in _named(found, "step.committed") if each["pid"] in members]
    phases = {
        "closed": closed,
        "formed": [formed["t"]],
        "known": known,
        "connected": met,
        "settled": [each["t"] for each in settled],
        "next commit": [min((at for at in steps if at > max(each["t"] for each in settled)), default=since)],
    }
    text = ", ".join(f"{name} {_ms(times, since)}" for name, times in phases.items() if times)
    return [f"  {job}: generation {generation} of {len(members)}: {text}"]


def _newcomer(found: Sequence[Mapping[str, Any]]) -> list[str]:
    ended, started = _named(found, "assignment.ended"), _named(found, "assignment.started")
    if not ended or not started:
        return []
    since = ended[0]["t"]
    exits = [each["t"] for each in _named(found, "worker.exited")]
    warmed = _named(found, "worker.warmed")
    phases = {
        "worker exited": exits[:1],
        "its process started": [started[0]["t"]],
        "its worker": [each["t"] for each in _named(found, "worker.started")][:1],
        "ready": [each["t"] for each in warmed][:1],
    }
    text = ", ".join(f"{name} {_ms(times, since)}" for name, times in phases.items() if times)
    return [f"  since the end of the slot's assignment: {text}"]


def _ms(times: Sequence[float], since: float) -> str:
    first, last = round(1000 * (min(times) - since)), round(1000 * (max(times) - since))
    return f"{first}" if first == last else f"{first} to {last}"


def _named(found: Iterable[Mapping[str, Any]], name: str) -> list[Mapping[str, Any]]:
    return [each for each in found if each["event"] == name]


def _within(events: Path, began: float, ended: float) -> Iterable[Mapping[str, Any]]:
    """Times of day, given as such."""
    offset_s = time.time() - time.monotonic()
    with events.open() as lines:
        for line in lines:
            event = json.loads(line)
            if began <= event["t"] + offset_s < ended:
                yield event
