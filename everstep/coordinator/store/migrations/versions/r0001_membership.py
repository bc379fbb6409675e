"""Jobs, workers, generations."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "jobs",
        sa.Column("job", sa.String, primary_key=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("policy", sa.Text, nullable=False),
        sa.Column("is_stopped", sa.Boolean, nullable=False),
        sa.Column("is_finished", sa.Boolean, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("attempt", sa.Text, nullable=False),
        sa.Column("num_restarts", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "workers",
        sa.Column("job", sa.String, primary_key=True),
        sa.Column("worker", sa.Text, primary_key=True),
        sa.Column("slot", sa.BigInteger, nullable=False),
        sa.Column("agent", sa.Text, nullable=False),
        sa.Column("request", sa.Text, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("incarnation", sa.Text, nullable=False),
        sa.Column("pid", sa.BigInteger, nullable=False),
        sa.Column("address", sa.Text, nullable=False),
        sa.Column("store_port", sa.BigInteger, nullable=False),
        sa.Column("probe_port", sa.BigInteger, nullable=False),
        sa.Column("seniority", sa.BigInteger, nullable=False),
        sa.Column("announced_in", sa.BigInteger, nullable=False),
        sa.Column("settled", sa.BigInteger, nullable=False),
        sa.Column("held", sa.BigInteger, nullable=False),
        sa.Column("step", sa.BigInteger, nullable=False),
        sa.Column("micro_batch", sa.BigInteger, nullable=False),
        sa.Column("wants_stacks", sa.Boolean, nullable=False),
        sa.Column("attempt", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "generations",
        sa.Column("job", sa.String, primary_key=True),
        sa.Column("number", sa.BigInteger, primary_key=True),
        sa.Column("members", sa.Text, nullable=False),
        sa.Column("store_port", sa.BigInteger, nullable=False),
        sa.Column("continues", sa.BigInteger, nullable=False),
        sa.Column("max_workers", sa.BigInteger),
        sa.Column("left_out", sa.Text, nullable=False),
        sa.Column("is_closed", sa.Boolean, nullable=False),
        sa.Column("is_broken", sa.Boolean, nullable=False),
        sa.Column("must_probe", sa.Boolean, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
    )
