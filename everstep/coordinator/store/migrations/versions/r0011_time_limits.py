"""How long experiments have run, for their time limits. Those that run now begin to count with their next change."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    op.add_column("experiments", sa.Column("ran_s", sa.Float, nullable=False, server_default="0"))
    op.add_column("experiments", sa.Column("runs_since", sa.Float))
