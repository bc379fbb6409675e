"""How far a trial has come, and what was done about it: part of the state, so the same on all workers, always.

The counts advance with each commit. What is done between two steps and changes the state (a scheduler's step, a
callback) is entered in the journal of the step: who is brought here by a peer's state does not do it again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from everstep.pytorch.units import BatchProgress


class Tally:
    def __init__(self) -> None:
        self.before = BatchProgress()  # the last batch
        self.now = BatchProgress()
        self.validated_at = -1  # batches
        self.saved_at = -1
        self.best: float | None = None  # of the searcher's metric …
        self.best_at = -1  # … and when
        self.is_stopping = False  # somebody has asked for it
        self.is_preempted = False  # all workers were asked to go
        self.is_cut = False  # saved before all was done that is due after the last batch
        self.epoch_begun = -1  # callbacks have heard of its start
        self._journal: list[str] = []

    def advance(self, now: BatchProgress) -> None:
        """With a commit."""
        self.before, self.now, self._journal = self.now, now, []

    def once(self, name: str, act: Callable[[], None]) -> None:
        """Between two steps: do it, unless the state that this worker was given has it done already."""
        if name not in self._journal:
            self._journal.append(name)
            act()

    def state_dict(self) -> dict[str, Any]:
        return {
            "before": asdict(self.before),
            "now": asdict(self.now),
            "validated_at": self.validated_at,
            "saved_at": self.saved_at,
            "best": self.best,
            "best_at": self.best_at,
            "is_stopping": self.is_stopping,
            "is_preempted": self.is_preempted,
            "is_cut": self.is_cut,
            "epoch_begun": self.epoch_begun,
            "journal": list(self._journal),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.before, self.now = BatchProgress(**state["before"]), BatchProgress(**state["now"])
        self.validated_at, self.saved_at = state["validated_at"], state["saved_at"]
        self.best, self.best_at = state["best"], state["best_at"]
        self.is_stopping, self.is_preempted = state["is_stopping"], state["is_preempted"]
        self.is_cut, self.epoch_begun = state["is_cut"], state["epoch_begun"]
        self._journal = list(state["journal"])

    def resume(self, state: dict[str, Any]) -> None:
        """From a checkpoint: the wish to stop was that of the run before."""
        self.load_state_dict(state)
        self.is_stopping = self.is_preempted = False
