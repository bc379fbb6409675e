"""Look for a checkpoint by its UUID in a storage: in the place itself, and in those that runs and trials have below it.

The UUID is computed from place and step, so the names of folders are enough: no file is read. Runs without torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from everstep.checkpoint.index import checkpoint_uuid
from everstep.checkpoint.manifest import parse_folder
from everstep.storage.base import Storage, full_uri, open_storage

_RECORD = "record"  # of jobs, beside their checkpoints


def find_below(uri: str, uuid: str, *, saved_as: str = "") -> tuple[str, int] | None:
    """Its place and step. `saved_as`: what the job that has saved it calls `uri`, if it is another name."""
    here, there = full_uri(uri), full_uri(saved_as or uri)
    with closing(open_storage(here)) as storage:
        for below, step in _steps(storage):
            if checkpoint_uuid(f"{there}{below}", step) == uuid:
                return f"{here}{below}", step
    return None


def _steps(storage: Storage) -> Iterator[tuple[str, int]]:
    """In the place itself; in NAME, as trials of a search save; in NAME/NUMBER, as runs do."""
    names = _folders(storage, "")
    yield from _saved("", names)
    for name in names:
        if name == _RECORD or parse_folder(name) is not None:
            continue
        below = _folders(storage, name)
        yield from _saved(f"/{name}", below)
        for run in below:
            if run.isdecimal():
                yield from _saved(f"/{name}/{run}", _folders(storage, f"{name}/{run}"))


def _folders(storage: Storage, folder: str) -> list[str]:
    return [name for name, size in storage.list(folder).items() if size is None]


def _saved(place: str, names: list[str]) -> Iterator[tuple[str, int]]:
    for name in names:
        if (key := parse_folder(name)) is not None:
            yield place, key.step
