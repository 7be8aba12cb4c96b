"""The content of a base, read and changed by SQL that is shared by SQLite and PostgreSQL.

Each module is a repository: coroutines over a `Read` or a `Write` of `transaction.py`.
"""
