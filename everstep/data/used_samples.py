"""Which samples of which leases were used in committed steps that the coordinator has not been told of yet.

All workers hold the same: each step's pulse carries what every worker used in it, and whoever is new gets it with the
state. So what a lost worker used is known to all that are left, to the sample. A step is reported when the next one
has proved that all hold it. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from everstep.wire import LeasePart


@dataclass(frozen=True, kw_only=True, slots=True)
class Note:
    """What one worker says with a step."""

    used: tuple[LeasePart, ...]
    reported: int  # through this step, as far as it knows
    is_end: bool  # the coordinator has told it that all samples are done

    def pack(self) -> bytes:
        used = [[part.lease, part.start, part.count] for part in self.used]
        return json.dumps([used, self.reported, self.is_end], separators=(",", ":")).encode()

    @classmethod
    def unpack(cls, raw: bytes) -> Note:
        used, reported, is_end = json.loads(raw)
        return cls(used=_parts(used), reported=reported, is_end=is_end)


class Usage:
    def __init__(self) -> None:
        self.mine: list[LeasePart] = []  # this worker's, in the step under way
        self._steps: dict[int, tuple[LeasePart, ...]] = {}  # by committed step, of all workers
        self._reported = 0

    def committed(self, step: int, notes: Sequence[Note]) -> None:
        self._steps[step] = tuple(part for note in notes for part in note.used)
        self.mine.clear()
        self.heard(notes)

    def heard(self, notes: Sequence[Note]) -> None:
        self.told(max(note.reported for note in notes))
        self._steps = {number: parts for number, parts in self._steps.items() if number > self._reported}

    def told(self, step: int) -> None:
        """The coordinator knows of all steps through this one. From any thread."""
        self._reported = max(self._reported, step)

    def through(self, step: int) -> list[LeasePart]:
        """What is to be reported of the steps through this one."""
        return [part for number, parts in self._steps.items() if self._reported < number <= step for part in parts]

    def note(self, *, is_end: bool) -> Note:
        return Note(used=tuple(self.mine), reported=self._reported, is_end=is_end)

    def state_dict(self) -> dict[str, Any]:
        steps = [[step, [[p.lease, p.start, p.count] for p in parts]] for step, parts in sorted(self._steps.items())]
        return {"steps": steps, "reported": self._reported}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._steps = {step: _parts(parts) for step, parts in state["steps"]}
        self._reported = state["reported"]
        self.mine.clear()


def _parts(values: Iterable[Sequence[int]]) -> tuple[LeasePart, ...]:
    return tuple(LeasePart(lease=lease, start=start, count=count) for lease, start, count in values)
