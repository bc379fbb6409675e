"""Databases: open one, write many rows with few statements, and say what went wrong without its secrets.

SQLite by path (WAL, every commit flushed to the disk, for its owner only), PostgreSQL by URL. Knows no table."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import Connection, Dialect, Engine, Table, create_engine, event
from sqlalchemy.pool import StaticPool

from everstep.errors import PermanentError, TemporaryError
from everstep.storage import private_file

ROWS_PER_STATEMENT = 128  # databases limit the number of parameters: with 20 columns, this is a tenth of the limit


class StoreError(TemporaryError):
    """The store did not keep or give something; no reply mentioned it."""


class StoreTaken(PermanentError):
    """Another coordinator has this store now; nothing was written. This one must stop."""


def sqlite_path(url: str) -> str | None:
    """The file of an SQLite store; "" if it is in memory; None for another database."""
    if "://" not in url:
        return str(Path(url).absolute())
    if not url.startswith("sqlite"):
        return None
    path = url.partition(":///")[2]
    return "" if path == ":memory:" else path


def open_engine(url: str, *, num_connections: int = 1, synchronous: str = "FULL", **options: Any) -> Engine:
    """`num_connections`: to PostgreSQL; twice as many for a moment. `synchronous`: how SQLite flushes a commit."""
    path = sqlite_path(url)
    if path is None:
        url = url.replace("postgresql://", "postgresql+psycopg://", 1)
        sizes = {"pool_size": num_connections, "max_overflow": num_connections}
        return create_engine(url, pool_pre_ping=True, **sizes, **options)
    if not path:
        return create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
    if not os.path.exists(path):  # it holds addresses and names
        os.close(private_file.descriptor(path, os.O_WRONLY))
    engine = create_engine(f"sqlite:///{path}", connect_args={"check_same_thread": False})

    @event.listens_for(engine, "connect")
    def _configure(connection: Any, _record: Any) -> None:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute(f"PRAGMA synchronous={synchronous}")

    return engine


def open_readonly(path: Path) -> Engine:
    """An SQLite file that its writer has left. Nothing is written beside it, unless the writer was killed: then the
    rest of its log must be read first."""
    has_rest = path.with_name(f"{path.name}-wal").exists()
    uri = f"file:{quote(str(path.absolute()))}?{'mode=ro' if has_rest else 'immutable=1'}"
    return create_engine("sqlite://", creator=lambda: sqlite3.connect(uri, uri=True, check_same_thread=False))


def upsert(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write many rows with few statements: insert those that are new, replace the others.

    Row by row, each would be a call into the driver, which releases the interpreter and waits for its turn again:
    beside a busy event loop, that cost a second for two hundred rows. The statements are plain text, made once: to look
    up one of a thousand parameters again, SQLAlchemy would need longer than the database for the rows."""
    columns, first = [(each.name, "is_json" in each.info) for each in table.columns], 0
    while first < len(rows):
        # Powers of 2, so that there are few statements.
        num_rows = min(ROWS_PER_STATEMENT, 1 << (len(rows) - first).bit_length() - 1)
        some = rows[first : first + num_rows]
        values = tuple(json.dumps(row[name]) if is_json else row[name] for row in some for name, is_json in columns)
        connection.exec_driver_sql(_upsertion(connection.dialect, table, num_rows), values)
        first += num_rows


@cache
def _upsertion(dialect: Dialect, table: Table, num_rows: int) -> str:
    quote = dialect.identifier_preparer.quote
    names = [quote(column.name) for column in table.columns]
    keys = [quote(column.name) for column in table.primary_key]
    mark = "?" if dialect.paramstyle == "qmark" else "%s"
    row = f"({', '.join([mark] * len(names))})"
    replaced = ", ".join(f"{name} = excluded.{name}" for name in names if name not in keys)
    return (
        f"INSERT INTO {quote(table.name)} ({', '.join(names)}) VALUES {', '.join([row] * num_rows)} "
        f"ON CONFLICT ({', '.join(keys)}) DO UPDATE SET {replaced}"
    )


def words(error: Exception) -> str:
    """The cause without the statement, its values or the URL: they may hold a password."""
    return str(getattr(error, "orig", None) or type(error).__name__).strip().splitlines()[0]
