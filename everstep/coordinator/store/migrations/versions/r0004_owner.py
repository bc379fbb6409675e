"""Who owns the store, as a number that each start counts up; which workers are older than the loss of the
state, and as which rank one died."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.create_table("owner", sa.Column("epoch", sa.BigInteger, primary_key=True))
    op.add_column("workers", sa.Column("died_as", sa.BigInteger, nullable=False, server_default="-1"))
    op.add_column("workers", sa.Column("is_stale", sa.Boolean, nullable=False, server_default=sa.false()))
    op.add_column("generations", sa.Column("is_lost", sa.Boolean, nullable=False, server_default=sa.false()))
