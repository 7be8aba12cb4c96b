"""`kb connect`: adds kb to the configuration of agents' clients, and removes it again.

clients.py    the supported clients, their configuration files, and the form of their entries
editing.py    one member of a JSON or TOML file inserted or removed; all other text is unchanged
command.py    the command: the difference, a confirmation, the file
"""
