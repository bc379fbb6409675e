"""Models with their versions, what people write on checkpoints, and templates."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    op.create_table(
        "checkpoint_notes",
        sa.Column("uuid", sa.String, primary_key=True),
        sa.Column("metadata", sa.Text, nullable=False),
    )
    op.create_table(
        "models",
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("request", sa.String, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("description", sa.Text, nullable=False),
        sa.Column("notes", sa.Text, nullable=False),
        sa.Column("labels", sa.Text, nullable=False),
        sa.Column("metadata", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("is_archived", sa.Boolean, nullable=False),
        sa.Column("is_deleted", sa.Boolean, nullable=False),
        sa.Column("last_version", sa.BigInteger, nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("changed_at", sa.Float, nullable=False),
    )
    op.create_index("models_by_request", "models", ["request"], unique=True)
    op.create_table(
        "model_versions",
        sa.Column("model", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("checkpoint", sa.String, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("comment", sa.Text, nullable=False),
        sa.Column("notes", sa.Text, nullable=False),
        sa.Column("labels", sa.Text, nullable=False),
        sa.Column("metadata", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("changed_at", sa.Float, nullable=False),
    )
    op.create_index("model_versions_by_checkpoint", "model_versions", ["checkpoint"])
    op.create_table(
        "templates",
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("config", sa.Text, nullable=False),
        sa.Column("written", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("changed_at", sa.Float, nullable=False),
    )
