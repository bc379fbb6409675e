"""The tables of the record, in a database file of their own on SQLite, beside the coordinator's on PostgreSQL.

Prefixed, because PostgreSQL has them in the same schema. A changed table gets a new REVISION."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Float, Index, LargeBinary, MetaData, String, Table, Text

REVISION = 1

TABLES = MetaData()


def _key(name: str) -> Column[int]:
    return Column(name, BigInteger, primary_key=True, autoincrement=False)


def _number(name: str) -> Column[int]:
    return Column(name, BigInteger, nullable=False)


OWNER = Table("record_owner", TABLES, _key("epoch"), _number("revision"))  # one row
SERIES = Table(
    "record_series",
    TABLES,
    _key("series"),
    Column("job", String, nullable=False),
    Column("name", String, nullable=False),
    Column("histories", Text, nullable=False),  # JSON
    Column("total", LargeBinary, nullable=False),  # a span of all points
    Index("record_series_by_name", "job", "name", unique=True),
)
ROWS = Table(  # of points and spans: see `pyramid`
    "record_rows",
    TABLES,
    *(_key("series"), _key("level"), _key("number"), Column("data", LargeBinary, nullable=False)),
    sqlite_with_rowid=False,  # rows of a series lie next to each other
)
REPORTS = Table(  # what is not a number, and what happened
    "record_reports",
    TABLES,
    *(Column("job", String, primary_key=True), Column("kind", String, primary_key=True), _key("step")),
    *(_number("number"), _number("history"), Column("time", Float, nullable=False)),
    Column("details", Text, nullable=False),  # JSON
    Index("record_reports_by_number", "job", "number"),
)
