"""The words of Determined's client: states, orders, levels."""

from __future__ import annotations

import enum


class ExperimentState(enum.Enum):
    ACTIVE = "ACTIVE"
    PAUSED = "PAUSED"
    STOPPING_COMPLETED = "STOPPING_COMPLETED"
    STOPPING_CANCELED = "STOPPING_CANCELED"
    STOPPING_KILLED = "STOPPING_KILLED"
    STOPPING_ERROR = "STOPPING_ERROR"
    COMPLETED = "COMPLETED"
    CANCELED = "CANCELED"
    ERROR = "ERROR"
    DELETED = "DELETED"


class TrialState(enum.Enum):
    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    WAITING = "WAITING"  # for the search to decide
    PAUSED = "PAUSED"
    COMPLETED = "COMPLETED"
    CANCELED = "CANCELED"
    ERROR = "ERROR"


class CheckpointState(enum.Enum):
    ACTIVE = "ACTIVE"
    COMPLETED = "COMPLETED"
    PARTIALLY_DELETED = "PARTIALLY_DELETED"
    ERROR = "ERROR"
    DELETED = "DELETED"


class DownloadMode(enum.Enum):
    """Determined's; every mode reads the storage directly here."""

    AUTO = "auto"
    DIRECT = "direct"
    MASTER = "master"


class OrderBy(enum.Enum):
    ASCENDING = "ascending"
    ASC = "ascending"  # noqa: PIE796  the same order, by both of its names
    DESCENDING = "descending"
    DESC = "descending"  # noqa: PIE796

    @property
    def is_descending(self) -> bool:
        return self is OrderBy.DESCENDING


class ExperimentSortBy(enum.Enum):
    """By fields of an experiment's view."""

    ID = "experiment"
    NAME = "name"
    DESCRIPTION = "description"
    STATE = "state"
    PROGRESS = "progress"
    NUM_TRIALS = "num_trials"
    START_TIME = "started_at"
    END_TIME = "ended_at"
    USER = "owner"
    SEARCHER_METRIC_VAL = "best"


class TrialSortBy(enum.Enum):
    """By fields of a trial's view."""

    ID = "trial_id"
    STATE = "state"
    START_TIME = "started_at"
    END_TIME = "ended_at"
    BEST_VALIDATION_METRIC = "best"
    LATEST_VALIDATION_METRIC = "latest"
    BATCHES_PROCESSED = "batches"
    RESTARTS = "num_restarts"
    DURATION = "duration"


class CheckpointSortBy(enum.Enum):
    """By fields of a checkpoint's view."""

    UUID = "uuid"
    TRIAL_ID = "trial"
    BATCH_NUMBER = "step"
    END_TIME = "created_at"
    STATE = "state"
    SEARCHER_METRIC = "metric"


class ModelSortBy(enum.Enum):
    """By what the coordinator sorts."""

    UNSPECIFIED = "model"
    NAME = "name"
    DESCRIPTION = "description"
    CREATION_TIME = "created_at"
    LAST_UPDATED_TIME = "changed_at"
    NUM_VERSIONS = "num_versions"


class LogLevel(enum.Enum):
    """The numbers are those of Python's logging."""

    TRACE = 0
    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40
    CRITICAL = 50
