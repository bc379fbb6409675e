"""Copy an SQLite database into one file: also what a process that was killed has left in its journal."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from everstep.errors import StorageUnreachable
from everstep.storage import private_file


def copy_sqlite(source: Path, target: Path) -> None:
    """Piece by piece. The copy has no journal beside it, so it can be read where nothing can be written."""
    if not source.exists():
        raise FileNotFoundError(f"{source} does not exist")
    private_file.write(target, b"")
    try:
        with closing(sqlite3.connect(source)) as found, closing(sqlite3.connect(target)) as copy:
            found.backup(copy)
            copy.execute("PRAGMA journal_mode=DELETE")
    except sqlite3.Error as error:
        raise StorageUnreachable(f"{source} cannot be copied: {error}", code="database-not-copied") from None
