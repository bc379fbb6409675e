"""What a door gives the engine: which data a step is made of, and what advances together with the steps.

A door derives from `DataSource` and overrides what it needs; all methods are called in the script's thread."""

from __future__ import annotations

from collections.abc import Collection

from everstep.engine.pulse import NOWHERE, DataPlace, PulseDecision


class DataSource:
    """Without a door: each batch is the script's own affair."""

    def before_first_step(self) -> None:
        """The last chance to register state: what is summed is fixed right after this."""
        return

    def place(self) -> DataPlace:
        """The data of the next step; must be the same on all workers."""
        return NOWHERE

    def void_micro_batches(self) -> Collection[int]:
        """Micro-batches of the next step that have no samples."""
        return ()

    def note(self) -> bytes:
        """What all workers are to know of this one with the step's commit, as of the start of its last
        micro-batch …"""
        return b""

    def last_note(self, note: bytes) -> bytes:
        """… and as of its end: that note, or another of the same length."""
        return note

    def committed(self, decision: PulseDecision) -> None:
        """Part of the commit: advance with the step."""
        return

    def passed(self, decision: PulseDecision) -> None:
        """A step had no weight at all and does not count."""
        return

    def leave(self) -> None:
        """All workers leave between two steps, because they were asked to: save before that."""
        return

    def settled(self) -> None:
        """All members of a new generation hold the same state."""
        return
