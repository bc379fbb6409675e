"""Rows of templates: written in the caller's transaction, read as values."""

from __future__ import annotations

import json
from dataclasses import asdict, fields

from sqlalchemy import Connection, delete, func, select

from everstep import wire
from everstep.coordinator.store.tables import TEMPLATES
from everstep.storage.database import upsert


def read_template(connection: Connection, name: str) -> wire.TemplateView | None:
    row = connection.execute(select(TEMPLATES).where(TEMPLATES.c.name == name)).mappings().first()
    return None if row is None else wire.TemplateView(**{**row, "config": json.loads(row["config"])})


def read_templates(connection: Connection, start: int, limit: int) -> tuple[list[wire.TemplateView], int]:
    """A page of them, by name, and how many there are in all."""
    rows = connection.execute(select(TEMPLATES).order_by(TEMPLATES.c.name).offset(start).limit(limit)).mappings()
    found = [wire.TemplateView(**{**row, "config": json.loads(row["config"])}) for row in rows]
    return found, connection.scalar(select(func.count()).select_from(TEMPLATES)) or 0


def write_template(connection: Connection, template: wire.TemplateView) -> None:
    assert {each.name for each in fields(template)} == set(TEMPLATES.columns.keys())
    upsert(connection, TEMPLATES, [asdict(template)])


def drop_template(connection: Connection, name: str) -> None:
    connection.execute(delete(TEMPLATES).where(TEMPLATES.c.name == name))
