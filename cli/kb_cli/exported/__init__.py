"""`kb export` and `kb import`: a base as a folder of readable texts, and a base made from it.

    FOLDER/<collection>/<name>-<number>.md      the text of a document
    FOLDER/<collection>/<name>-<number>.json    its other properties, and the offsets of its passages
    FOLDER/kb-export.json                       time, engine and collections of the export; written last

layout.py    these files, written and read; invalid ones are refused
command.py   the two commands

A note has the text that was sent. For a file the base has only passages; the white space between two of them
becomes empty lines, so that every passage keeps its offset.
"""

from __future__ import annotations

from kb_cli.commands import ENGINE, LABELS, Command, arg
from kb_cli.parts import Part

PART = Part(commands=(
    Command("export", "keep", "kb_cli.exported.export_command:export", "export a base as text files", (
        *ENGINE,
        *LABELS,
        arg("folder", metavar="FOLDER", help="a new folder"),
    )),
))  # fmt: skip
