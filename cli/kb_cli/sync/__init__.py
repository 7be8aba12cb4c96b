"""`kb sync` and `kb watch`: keep a collection in step with a folder.

folder.py    the files of a folder, and their digests
planning.py  the sources to send and to remove, from that and from the documents of the base
command.py   the two commands

No state is kept between two runs: the base has the sources and the content hash of each document. So the next
run resumes an interrupted one, and several machines may keep their folders in one base.
"""

from __future__ import annotations

from kb_cli.commands import ENGINE, LABELS, Command, arg
from kb_cli.parts import Part

_SYNC = (
    arg("folder", metavar="FOLDER", help="folder; files matched by .gitignore and .kbignore are ignored"),
    arg("--yes", action="store_true", help="remove all documents if the folder has no files left"),
)

PART = Part(commands=(
    Command("sync", "add", "kb_cli.sync.sync_command:run", "synchronize a collection with a folder", (
        *ENGINE,
        *LABELS,
        *_SYNC,
        arg("--dry-run", action="store_true", help="show the changes without making them"),
    ), ("server",)),
    Command("watch", "add", "kb_cli.sync.sync_command:watch", "keep a collection like a folder", (
        *ENGINE, *LABELS, *_SYNC,
    ), ("server",)),
))  # fmt: skip
