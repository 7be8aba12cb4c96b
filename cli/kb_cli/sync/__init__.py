"""`kb sync` and `kb watch`: a collection kept in step with a folder.

folder.py    which files there are, and what is in them
planning.py  what has to be sent and what to be taken off, from that and from the documents of the base
command.py   the two commands

Nothing is kept between two runs: the base knows of each document its sources and the hash of its content. So
a run that was interrupted is resumed by the next, and several machines may keep their folders in one base.
"""
