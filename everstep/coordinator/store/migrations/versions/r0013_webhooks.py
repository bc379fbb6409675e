"""Webhooks: their deliveries, and how far logs were searched for what they and log policies look for."""

from functools import partial

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"

_text = partial(sa.Column, type_=sa.Text, nullable=False)
_number = partial(sa.Column, type_=sa.BigInteger, nullable=False)
_flag = partial(sa.Column, type_=sa.Boolean, nullable=False)
_time = partial(sa.Column, type_=sa.Float, nullable=False)
_key = partial(sa.Column, type_=sa.BigInteger, primary_key=True, autoincrement=False)
_name = partial(sa.Column, type_=sa.String, primary_key=True)


def upgrade() -> None:
    op.add_column("trials", sa.Column("log_matches", sa.Text, nullable=False, server_default="[]"))
    op.create_table(
        "webhooks",
        *(_key("number"), sa.Column("request", sa.String, nullable=False), _text("name"), _text("address")),
        *(_text("kind"), _text("triggers"), _text("log_patterns"), _number("experiment"), _text("owner")),
        *(_flag("is_for_everyone"), _flag("is_on_request"), _time("created_at")),
    )
    op.create_index("webhooks_by_request", "webhooks", ["request"], unique=True)
    op.create_table("webhook_secrets", _key("webhook"), _text("url"), _text("secret"))
    op.create_table(
        "deliveries",
        *(_name("uuid"), _number("webhook"), _text("event"), _time("created_at"), _time("next_at")),
        *(sa.Column("state", sa.String, nullable=False), _number("num_attempts"), _number("status"), _text("reason")),
        sa.Column("ended_at", sa.Float),
    )
    op.create_index("deliveries_by_webhook", "deliveries", ["webhook", "state", "next_at"])
    op.create_table("log_scans", _name("job"), _number("number"), _text("patterns"))
