"""Check once whether a script leaves its state alone between two commits.

If it does, its state can be sent straight from memory while the worker computes. If a script perturbs its weights
within a step, as adversarial training does, its state is copied first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from everstep.engine.parcel import large_sums
from everstep.errors import EverstepError

_AT_STEP = 2  # counted in this process: by then, optimizers have their state


class Steadiness:
    """The check of one worker's script."""

    def __init__(self, state: Callable[[], Any]) -> None:
        self.is_steady = False  # also False while not known
        self._state = state
        self._num_steps = 0
        self._before: list[bytes] | None = None

    def committed(self) -> None:
        self._num_steps += 1
        self._before = None

    def micro_batch_begins(self) -> None:
        if self._num_steps == _AT_STEP and self._before is None:
            self._before = self._sums()

    def backward_ended(self) -> None:
        """At any time from here to the update, a peer may need this worker's state."""
        if self._before is not None and self._num_steps == _AT_STEP:
            self.is_steady = self._sums() == self._before

    def note_change(self) -> None:
        """Called when the state has changed while it was sent."""
        self.is_steady, self._num_steps = False, _AT_STEP + 1

    def _sums(self) -> list[bytes]:
        try:
            return large_sums(self._state())
        except EverstepError:  # the state cannot be sent at all; a worker that stays alone need not know
            return []
