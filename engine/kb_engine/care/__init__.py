"""Maintenance of a database.

arrivals.py   import documents of another database, offline
check.py      compare stored data with itself and derive again what is damaged, offline
migration.py  copy everything into another database, offline
scan.py       the checks of check.py, spread over days, by a running engine while it is idle
"""
