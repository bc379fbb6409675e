"""What fits have found out: one row per job, kind and batch, numbered in the order of keeping."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "metrics",
        sa.Column("job", sa.String, primary_key=True),
        sa.Column("kind", sa.String, primary_key=True),
        sa.Column("batches", sa.BigInteger, primary_key=True),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("time", sa.Float, nullable=False),
        sa.Column("epochs", sa.BigInteger),
        sa.Column("records", sa.BigInteger),
        sa.Column("metrics", sa.Text, nullable=False),
        sa.Column("facts", sa.Text, nullable=False),
    )
    op.create_index("metrics_by_number", "metrics", ["job", "number"])
