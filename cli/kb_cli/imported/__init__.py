"""`kb import`: what others keep, taken into a base.

kinds.py         what may be imported
detection.py     which of these a folder or a file is
front_matter.py  the YAML at the beginning of a Markdown file
tags.py          which tags kb can keep
markdown.py      what a Markdown file says of itself, as Obsidian and as basic-memory write it
memories.py      the JSON of mcp-memory-service
command.py       the command

An export of kb goes into a base that no engine uses (`kb_cli.exported`). All others are sent to an engine, as
`kb add` sends files: the same file under the same source path, so that `kb sync` finds it in step.
"""
