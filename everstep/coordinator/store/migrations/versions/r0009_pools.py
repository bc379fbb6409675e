"""Pools: who owns an experiment, how it shares its pool, and which agents may get work."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.add_column("experiments", sa.Column("owner", sa.Text, nullable=False, server_default=""))
    op.add_column("experiments", sa.Column("scheduling", sa.Text, nullable=False, server_default="{}"))
    op.add_column("pool_agents", sa.Column("state", sa.Text, nullable=False, server_default="enabled"))
    op.add_column("pool_agents", sa.Column("state_reason", sa.Text, nullable=False, server_default=""))
