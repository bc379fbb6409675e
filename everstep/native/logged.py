"""What a script logs of each micro-batch (`trainer.log`), as means over all: the same for any number of workers.

Values logged before `backward()` go to all others with the step itself, so nothing is lost with a worker; values
logged later go with the next step. Added up in the order of steps and micro-batches: the same bits everywhere."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from everstep.errors import UsageError

_ENTRY_BYTES, _VALUE_BYTES = 64, 32  # in a note: of a micro-batch, and of each value beside its name
_Said = dict[int, tuple[float, dict[str, Any]]]  # by micro-batch: its weight, and the values


class Logged:
    """Part of the state that newcomers receive and that checkpoints hold."""

    def __init__(self) -> None:
        self._open: dict[int, _Said] = {}  # by step: those that not all workers may know yet
        self._totals: dict[str, list[float]] = {}  # by name: weight, and weighted sum
        self._names: set[str] = set()
        self._taken: dict[str, float] = {}  # the last answer, for workers that missed it
        self.last: dict[str, float] = {}  # means of the last step that all know

    def record(self, step: int, micro_batch: int, weight: float, values: Mapping[str, Any]) -> None:
        self._names.update(values)
        before = self._open.setdefault(step, {}).get(micro_batch, (weight, {}))[1]
        self._open[step][micro_batch] = (weight, before | {name: _value(name, value) for name, value in values.items()})

    def known(self) -> list[Any]:
        return [
            [step, [[micro_batch, *entry] for micro_batch, entry in _plain(said).items()]]
            for step, said in self._open.items()
        ]

    def note(self) -> bytes:
        """For all others, when the last micro-batch begins, with room for what that will say; empty where nothing was
        ever logged."""
        if not self._names:
            return b""
        text = self._packed()
        return text.ljust(len(text) + _ENTRY_BYTES + sum(len(name) + _VALUE_BYTES for name in self._names))

    def last_note(self, note: bytes) -> bytes:
        text = self._packed()
        return text.ljust(len(note)) if len(text) <= len(note) else note

    def _packed(self) -> bytes:
        return json.dumps(self.known(), separators=(",", ":")).encode()

    def hear(self, notes: Sequence[bytes], before_step: int) -> None:
        """Once a step is committed: what was logged in those before it is complete."""
        self.merge([json.loads(note) for note in notes if note], before_step)

    def merge(self, known: Sequence[Any], before_step: int) -> None:
        for step, said in (each for every in known for each in every):
            theirs = {int(micro_batch): (weight, values) for micro_batch, weight, values in said}
            self._open[step] = theirs | self._open.get(step, {})
        for step in sorted(step for step in self._open if step < before_step):
            self._close(_plain(self._open.pop(step)))

    def _close(self, said: _Said) -> None:
        step: dict[str, list[float]] = {}
        for micro_batch in sorted(said):
            weight, values = said[micro_batch]
            for name, value in values.items():
                for totals in (step, self._totals):
                    total = totals.setdefault(name, [0.0, 0.0])
                    total[0] += weight
                    total[1] += weight * value
        self.last = _means(step) or self.last

    def take(self, known: Sequence[Any] | None, before_step: int) -> dict[str, float]:
        """The means since the last time. `known`: by all workers; None: this one was not there when they took it."""
        if known is not None:
            self.merge(known, before_step)
            self._taken, self._totals = _means(self._totals), {}
        return dict(self._taken)

    def state_dict(self) -> dict[str, Any]:
        state = {"open": self.known(), "totals": self._totals, "taken": self._taken}
        return state if any(state.values()) else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._open, self._totals = {}, {name: list(total) for name, total in state.get("totals", {}).items()}
        self._taken = dict(state.get("taken", {}))
        self.merge([state.get("open", [])], before_step=-1)


def _means(totals: Mapping[str, Sequence[float]]) -> dict[str, float]:
    return {name: total / weight for name, (weight, total) in totals.items() if weight}


def _plain(said: _Said) -> _Said:
    """With numbers in place of tensors: only now, so that no worker waits for a GPU in the middle of a step."""
    return {
        micro_batch: (weight, {name: float(value) for name, value in values.items()})
        for micro_batch, (weight, values) in said.items()
    }


def _value(name: str, value: Any) -> Any:
    if hasattr(value, "detach"):
        value = value.detach()
        if value.numel() == 1:
            return value.clone()  # the script may change it later
    elif isinstance(value, int | float) or (hasattr(value, "__float__") and not isinstance(value, str)):
        return float(value)
    shape = f" of shape {tuple(value.shape)}" if hasattr(value, "shape") else f" {value!r:.40}"
    raise UsageError(
        f"log({name}=…) got a {type(value).__name__}{shape}", hint="give one number", code="logged-not-a-number"
    )
