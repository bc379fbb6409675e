"""What the page shows: marks of a job's workers, the job's configuration, and the sessions of browsers."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("config", sa.Text, nullable=False, server_default="{}"))
    op.create_table(
        "marks",
        sa.Column("job", sa.String, primary_key=True),
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("time", sa.Float, nullable=False),
        sa.Column("step", sa.BigInteger, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("generation", sa.BigInteger, nullable=False),
        sa.Column("worker", sa.Text, nullable=False),
        sa.Column("rank", sa.BigInteger, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("joined", sa.Text, nullable=False),
        sa.Column("parted", sa.Text, nullable=False),
    )
    op.create_table(
        "page_sessions",
        sa.Column("digest", sa.String, primary_key=True),
        sa.Column("token", sa.Text, nullable=False),
        sa.Column("role", sa.Text, nullable=False),
        sa.Column("expires_at", sa.Float, nullable=False),
    )
