"""What is done to a base beside its use.

arrivals.py   documents of another base are taken in, while no engine uses this one
check.py      what is kept is compared with itself, and what is derived of it is made again: likewise
migration.py  all of it is put into another base: likewise
scan.py       the same look as a check, a little at a time, by an engine that has nothing else to do
"""
