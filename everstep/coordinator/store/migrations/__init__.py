"""How the tables came to be, revision by revision; run by `schema`, with alembic."""
