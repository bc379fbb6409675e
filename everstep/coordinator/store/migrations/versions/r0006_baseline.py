"""The first revision. A new database gets all tables at once (`store.migrate`), so there is nothing to upgrade from."""

revision = "0006"
down_revision = None
