"""What a base holds, read and changed by SQL that is written once for SQLite and PostgreSQL.

Each module is a repository: coroutines over a `Read` or a `Write` of `transaction.py`.
"""
