"""`kb sync` and `kb watch`: keep a collection in step with a folder.

folder.py    the files of a folder, and their digests
planning.py  the sources to send and to remove, from that and from the documents of the base
command.py   the two commands

No state is kept between two runs: the base has the sources and the content hash of each document. So the next
run resumes an interrupted one, and several machines may keep their folders in one base.
"""
