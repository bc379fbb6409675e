"""How far a trial has come, and what was done after the last batch: part of the state, so the same on all workers.

The counts advance with each commit. Everything done between two steps that changes the state (a scheduler's step, a
callback) is entered in the step's journal, so a worker that receives a peer's state does not do it again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchProgress:
    """Committed batches of all workers together."""

    batches: int = 0
    epochs: int = 0  # finished ones
    records: int = 0
    seconds: float = 0.0  # of training, in this run and those that it continues


@dataclass(kw_only=True, eq=False)
class TrialProgress:
    before: BatchProgress = BatchProgress()  # before the last batch
    now: BatchProgress = BatchProgress()
    validated_at: int = -1  # in batches
    saved_at: int = -1
    best: float | None = None  # value of the searcher's metric …
    best_at: int = -1  # … and the batch
    is_stopping: bool = False  # a worker has requested it
    is_preempted: bool = False  # all workers were asked to leave
    is_cut: bool = False  # saved before everything due after the last batch was done
    epoch_begun: int = -1  # callbacks were notified of its start
    target: int = 0  # of a search: the number of the one being trained to …
    target_length: int | None = None  # … and its length; None: to the end of the script
    result: dict[str, Any] | None = None  # of the last validation, for the search; it may not know it yet
    is_over: bool = False  # the search has stopped the trial
    journal: list[str] = field(default_factory=list)

    def advance(self, now: BatchProgress) -> None:
        """With a commit."""
        self.before, self.now, self.journal = self.now, now, []

    def once(self, name: str, act: Callable[[], None]) -> None:
        """Between two steps: do it, unless this worker received a state in which it is done."""
        if name not in self.journal:
            self.journal.append(name)
            act()

    def state_dict(self) -> dict[str, Any]:
        return asdict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for each in fields(self):
            if each.name not in state:  # saved by an earlier version
                continue
            value = state[each.name]
            setattr(self, each.name, BatchProgress(**value) if each.name in ("before", "now") else value)
        self.journal = list(self.journal)

    def resume(self, state: dict[str, Any]) -> None:
        """From a checkpoint: a request to stop belonged to the earlier run."""
        self.load_state_dict(state)
        self.is_stopping = self.is_preempted = self.is_over = False

    @property
    def is_at_target(self) -> bool:
        """The search's target was reached, and validated."""
        length = self.target_length
        return self.result is not None and length is not None and bool(self.result["length"] >= length)


def without_search(state: Mapping[str, Any]) -> dict[str, Any]:
    """Of a trial whose training another one continues: targets are of its own search, and a result at one is, too."""
    result = state.get("result")
    is_planned = result is not None and bool(result.get("is_planned"))
    return {**state, "target": 0, "target_length": None, "result": result if is_planned else None}
