"""The first revision. A new database gets all tables at once (`store.migrate`), so there is nothing to upgrade from."""

revision = "0005"
down_revision = None
