"""Write many rows with few statements: insert those that are new, replace the others.

Row by row, each would be a call into the driver, which releases the interpreter and waits for its turn again: beside a
busy event loop, that cost a second for two hundred rows. The statements are plain text, made once: to look up
one of a thousand parameters again, SQLAlchemy would need longer than the database for the rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy import Connection, Dialect, Table

ROWS_PER_STATEMENT = 128  # databases limit the number of parameters: with 20 columns, this is a tenth of the limit


def upsert(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    names, first = table.columns.keys(), 0
    while first < len(rows):
        # Powers of 2, so that there are few statements.
        num_rows = min(ROWS_PER_STATEMENT, 1 << (len(rows) - first).bit_length() - 1)
        values = tuple(row[name] for row in rows[first : first + num_rows] for name in names)
        connection.exec_driver_sql(_statement(connection.dialect, table, num_rows), values)
        first += num_rows


@cache
def _statement(dialect: Dialect, table: Table, num_rows: int) -> str:
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
