"""`kb connect`: kb entered in the configuration of the clients that agents run in, and taken out again.

clients.py    which clients there are, where each keeps its servers, and what an entry of it looks like
editing.py    one member of a JSON or TOML file put in or taken out; every other character stays
command.py    the command: the difference, a yes, the file
"""
