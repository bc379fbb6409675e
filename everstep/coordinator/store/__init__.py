"""What is kept: tables, rows, migrations."""
