"""How the tables changed, revision by revision; run by `store.migrate`, with alembic."""
