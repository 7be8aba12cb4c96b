"""What is done to a base while no engine uses it.

arrivals.py   documents of another base are taken in
check.py      what is kept is compared with itself, and what is derived of it is made again
migration.py  all of it is put into another base
"""
