"""Experiments: their trials, the events of their searches, their checkpoints, and the slots of pools."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.create_table(
        "experiments",
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("request", sa.String, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("description", sa.Text, nullable=False),
        sa.Column("labels", sa.Text, nullable=False),
        sa.Column("notes", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("spec", sa.Text, nullable=False),
        sa.Column("kept", sa.Text, nullable=False),
        sa.Column("warm_start", sa.Text, nullable=False),
        sa.Column("summary", sa.Text, nullable=False),
        sa.Column("is_archived", sa.Boolean, nullable=False),
        sa.Column("needs_sweep", sa.Boolean, nullable=False),
        sa.Column("program_after", sa.BigInteger, nullable=False),
        sa.Column("program_state", sa.Text, nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("started_at", sa.Float),
        sa.Column("ended_at", sa.Float),
    )
    op.create_index("experiments_by_request", "experiments", ["request"], unique=True)
    op.create_table(
        "trials",
        sa.Column("experiment", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("trial_id", sa.BigInteger, nullable=False),
        sa.Column("bracket", sa.BigInteger, nullable=False),
        sa.Column("hparams", sa.Text, nullable=False),
        sa.Column("seed", sa.BigInteger, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("wish", sa.Text, nullable=False),
        sa.Column("target_number", sa.BigInteger, nullable=False),
        sa.Column("target", sa.BigInteger),
        sa.Column("length", sa.BigInteger, nullable=False),
        sa.Column("latest", sa.Text, nullable=False),
        sa.Column("best", sa.Float),
        sa.Column("best_length", sa.BigInteger, nullable=False),
        sa.Column("batches", sa.BigInteger, nullable=False),
        sa.Column("ending", sa.Text, nullable=False),
        sa.Column("num_restarts", sa.BigInteger, nullable=False),
        sa.Column("vacated", sa.BigInteger, nullable=False),
        sa.Column("best_checkpoint", sa.Text, nullable=False),
        sa.Column("latest_checkpoint", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("reuse_key", sa.String, nullable=False),
        sa.Column("reused", sa.Text, nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("started_at", sa.Float),
        sa.Column("ended_at", sa.Float),
    )
    op.create_index("trials_by_id", "trials", ["trial_id"], unique=True)
    op.create_index("trials_by_reuse_key", "trials", ["reuse_key"])
    op.create_table(
        "search_events",
        sa.Column("experiment", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("time", sa.Float, nullable=False),
        sa.Column("event", sa.Text, nullable=False),
        sa.Column("operations", sa.Text, nullable=False),
        sa.Column("batches", sa.BigInteger, nullable=False),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("is_planned", sa.Boolean, nullable=False),
    )
    op.create_table(
        "checkpoints",
        sa.Column("uuid", sa.String, primary_key=True),
        sa.Column("job", sa.Text, nullable=False),
        sa.Column("experiment", sa.BigInteger, nullable=False),
        sa.Column("trial", sa.BigInteger, nullable=False),
        sa.Column("uri", sa.Text, nullable=False),
        sa.Column("step", sa.BigInteger, nullable=False),
        sa.Column("generation", sa.BigInteger, nullable=False),
        sa.Column("num_bytes", sa.BigInteger, nullable=False),
        sa.Column("metrics", sa.Text, nullable=False),
        sa.Column("metric", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("code", sa.Text, nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("digest", sa.Text, nullable=False),
    )
    op.create_index("checkpoints_by_trial", "checkpoints", ["experiment", "trial"])
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
        sa.Column("ended_at", sa.Float),
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
