"""People: which trial created an experiment, the secrets of experiments, and the secret behind the tokens of trials."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.add_column("experiments", sa.Column("created_by", sa.Text, nullable=False, server_default=""))
    op.create_table(
        "experiment_secrets",
        sa.Column("experiment", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("held", sa.Text, nullable=False),
    )
    op.create_table("trial_secret", sa.Column("secret", sa.String, primary_key=True))
