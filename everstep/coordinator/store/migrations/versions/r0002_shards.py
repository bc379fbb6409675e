"""Datasets, who holds which samples of them, what waits to be leased again, shards that failed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "datasets",
        sa.Column("job", sa.String, primary_key=True),
        sa.Column("dataset", sa.String, primary_key=True),
        sa.Column("spec", sa.Text, nullable=False),
        sa.Column("next", sa.BigInteger, nullable=False),
        sa.Column("next_lease", sa.BigInteger, nullable=False),
        sa.Column("settled", sa.BigInteger, nullable=False),
        sa.Column("restored", sa.Text, nullable=False),
    )
    op.create_table(
        "holders",
        sa.Column("job", sa.String, primary_key=True),
        sa.Column("dataset", sa.String, primary_key=True),
        sa.Column("worker", sa.String, primary_key=True),
        sa.Column("incarnation", sa.String, primary_key=True),
        sa.Column("request", sa.BigInteger, nullable=False),
        sa.Column("generation", sa.BigInteger, nullable=False),
        sa.Column("refused", sa.Text, nullable=False),
        sa.Column("leases", sa.Text, nullable=False),
    )
    op.create_table(
        "waiting_leases",
        sa.Column("job", sa.String, primary_key=True),
        sa.Column("dataset", sa.String, primary_key=True),
        sa.Column("lease", sa.BigInteger, primary_key=True),
        sa.Column("start", sa.BigInteger, nullable=False),
        sa.Column("stop", sa.BigInteger, nullable=False),
        sa.Column("is_takeover", sa.Boolean, nullable=False),
    )
    op.create_table(
        "bad_shards",
        sa.Column("job", sa.String, primary_key=True),
        sa.Column("dataset", sa.String, primary_key=True),
        sa.Column("start", sa.BigInteger, primary_key=True),
        sa.Column("failures", sa.BigInteger, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("skipped", sa.Text, nullable=False),
    )
