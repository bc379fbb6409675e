"""Pools: their agents, and the slots that were given to trials."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.create_table(
        "assignments",
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("pool", sa.Text, nullable=False),
        sa.Column("agent", sa.Text, nullable=False),
        sa.Column("slot", sa.BigInteger, nullable=False),
        sa.Column("experiment", sa.BigInteger, nullable=False),
        sa.Column("trial", sa.BigInteger, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("began_at", sa.Float, nullable=False),
        sa.Column("ended_at", sa.Float, nullable=False),
    )
    op.create_table(
        "pool_agents",
        sa.Column("pool", sa.String, primary_key=True),
        sa.Column("agent", sa.String, primary_key=True),
        sa.Column("incarnation", sa.Text, nullable=False),
        sa.Column("num_slots", sa.BigInteger, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("seen_at", sa.Float, nullable=False),
    )
