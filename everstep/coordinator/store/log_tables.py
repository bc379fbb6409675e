"""The tables of the log: in a database file of their own on SQLite, beside the other tables on PostgreSQL.

Made where they are missing. A changed table needs a revision in `migrations`, as any other on PostgreSQL."""

from __future__ import annotations

from functools import partial

from sqlalchemy import BigInteger, Column, Float, Index, LargeBinary, MetaData, String, Table, Text

LOG_TABLES = MetaData()

_name = partial(Column, type_=String, primary_key=True)
_text = partial(Column, type_=Text, nullable=False)
_number = partial(Column, type_=BigInteger, nullable=False)
_time = partial(Column, type_=Float, nullable=False)

LOG_OWNER = Table(
    "log_owner", LOG_TABLES, Column("epoch", BigInteger, primary_key=True, autoincrement=False)
)  # one row
# How much of each worker's output is kept: the same chunk, sent again, is recognized by it.
LOG_WRITERS = Table(
    "log_writers",
    LOG_TABLES,
    *(_name("job"), _name("worker"), _text("node"), _number("next_line"), _number("stdout"), _number("stderr")),
)
# A block holds the parts with the numbers from `first_number` to `number`: one as it came, or many packed together.
# `data` is last: SQLite need not read it to get what is before it.
LOG_BLOCKS = Table(
    "log_blocks",
    LOG_TABLES,
    *(_name("job"), Column("number", BigInteger, primary_key=True, autoincrement=False)),
    *(_number("first_number"), _number("num_lines"), _number("num_bytes"), _number("top_level")),
    *(_time("first_time"), _time("last_time"), _time("expires_at")),
    _text("workers"),  # " w0 w1 "
    Column("filter", LargeBinary),  # none: not yet packed with others
    _text("parts"),  # JSON
    Column("data", LargeBinary, nullable=False),
    Index("log_blocks_by_expiry", "expires_at"),
)
LOG_DROPS = Table(
    "log_drops",
    LOG_TABLES,
    *(_name("job"), _number("old_lines"), _number("old_bytes"), _number("node_lines"), _number("node_bytes")),
)
