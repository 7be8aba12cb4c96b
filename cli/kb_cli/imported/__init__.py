"""`kb import`: data of other programs, ingested into a base.

kinds.py         the supported kinds
detection.py     the kind of a folder or a file
tags.py          the tags that kb can keep
markdown.py      the properties of a Markdown file, in the dialects of Obsidian and basic-memory
memories.py      the JSON of mcp-memory-service
command.py       the command

An export of kb goes into a base that no engine uses (`kb_cli.exported`). All other kinds are sent to an
engine, as `kb add` sends files: the same file under the same source path, so that `kb sync` finds it
unchanged.
"""
