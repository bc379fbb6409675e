"""The base class of your search method, and the state that it may read. A runner calls it, and posts its operations."""

from __future__ import annotations

import json
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from everstep.searcher.operations import SearcherOperation

STATE_FILE = "state"


class ExitedReason(Enum):
    ERRORED = "ERRORED"
    USER_CANCELED = "USER_CANCELED"
    INVALID_HP = "INVALID_HP"


@dataclass
class SearcherState:
    """The state of the experiment, kept by the runner. Read it in your handlers; do not change it."""

    failures: set[uuid.UUID] = field(default_factory=set)
    trial_progress: dict[uuid.UUID, float] = field(default_factory=dict)
    trials_closed: set[uuid.UUID] = field(default_factory=set)
    trials_created: set[uuid.UUID] = field(default_factory=set)
    last_event_id: int = 0
    experiment_completed: bool = False
    experiment_failed: bool = False
    experiment_id: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """The state under Determined's keys, sorted, so that equal states give equal texts."""
        return {
            "failures": sorted(map(str, self.failures)),
            "trialProgress": {str(trial): self.trial_progress[trial] for trial in sorted(self.trial_progress)},
            "trialsClosed": sorted(map(str, self.trials_closed)),
            "trialsCreated": sorted(map(str, self.trials_created)),
            "lastEventId": self.last_event_id,
            "experimentId": self.experiment_id,
            "experimentCompleted": self.experiment_completed,
            "experimentFailed": self.experiment_failed,
        }

    def from_dict(self, plain: Mapping[str, Any]) -> None:
        self.failures = {uuid.UUID(each) for each in plain.get("failures", [])}
        self.trial_progress = {uuid.UUID(each): value for each, value in plain.get("trialProgress", {}).items()}
        self.trials_closed = {uuid.UUID(each) for each in plain.get("trialsClosed", [])}
        self.trials_created = {uuid.UUID(each) for each in plain.get("trialsCreated", [])}
        self.last_event_id = plain.get("lastEventId", 0)
        self.experiment_id = plain.get("experimentId")
        self.experiment_completed = plain.get("experimentCompleted", False)
        self.experiment_failed = plain.get("experimentFailed", False)


class SearchMethod(ABC):
    """Each handler returns operations in the order in which to apply them."""

    @abstractmethod
    def initial_operations(self, searcher_state: SearcherState) -> list[SearcherOperation]: ...

    @abstractmethod
    def on_trial_created(self, searcher_state: SearcherState, request_id: uuid.UUID) -> list[SearcherOperation]: ...

    @abstractmethod
    def on_validation_completed(
        self, searcher_state: SearcherState, request_id: uuid.UUID, metric: Any, train_length: int
    ) -> list[SearcherOperation]:
        """`train_length`: the length of the ValidateAfter that this answers."""

    @abstractmethod
    def on_trial_closed(self, searcher_state: SearcherState, request_id: uuid.UUID) -> list[SearcherOperation]: ...

    @abstractmethod
    def on_trial_exited_early(
        self, searcher_state: SearcherState, request_id: uuid.UUID, exited_reason: ExitedReason
    ) -> list[SearcherOperation]: ...

    @abstractmethod
    def progress(self, searcher_state: SearcherState) -> float:
        """How much of the search is done, from 0 to 1."""

    def save_method_state(self, path: Path) -> None:  # noqa: B027  a method without state needs none
        """Write your own state into this folder."""

    def load_method_state(self, path: Path) -> None:  # noqa: B027
        """Read what `save_method_state` wrote."""

    def save(self, searcher_state: SearcherState, path: Path, *, experiment_id: int) -> None:
        searcher_state.experiment_id = experiment_id
        (path / STATE_FILE).write_text(json.dumps(searcher_state.to_dict()))
        self.save_method_state(path)

    def load(self, path: Path) -> tuple[SearcherState, int]:
        searcher_state = SearcherState()
        searcher_state.from_dict(json.loads((path / STATE_FILE).read_text()))
        self.load_method_state(path)
        assert searcher_state.experiment_id is not None
        return searcher_state, searcher_state.experiment_id
