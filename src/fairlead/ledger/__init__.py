"""The ledger: SQLite (the embedded default) and PostgreSQL behind one port. README.md."""
