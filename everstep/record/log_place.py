"""Where a coordinator's log is on SQLite: a file beside its store, during the job and when it is over."""

from __future__ import annotations

from pathlib import Path


def log_path(store: Path) -> Path:
    """coordinator.db: coordinator-logs.db."""
    return store.with_name(f"{store.stem}-logs{store.suffix}")
