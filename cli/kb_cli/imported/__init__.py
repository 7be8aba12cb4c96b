"""`kb import`: data of other programs, ingested into a base.

detection.py       the kind of a folder or a file
markdown.py        the properties of a Markdown file, in the dialects of Obsidian and basic-memory
memories.py        the JSON of mcp-memory-service
bookmarks.py       bookmarks of browsers, and exports of read-later services
import_command.py  the command

An export of kb goes into a base that no engine uses (`kb_cli.exported`). All other kinds are sent to an
engine, as `kb add` sends files: the same file under the same source path, so that `kb sync` finds it
unchanged.
"""

from __future__ import annotations

from typing import Literal, get_args

from kb_cli.commands import EMBEDDER, ENGINE, HOME, LABELS, Command, arg
from kb_cli.parts import Part

Kind = Literal["kb", "obsidian", "basic-memory", "mcp-memory-service", "bookmarks"]
KINDS: tuple[Kind, ...] = get_args(Kind)

NAMES: dict[Kind, str] = {
    "kb": "an export of kb",
    "obsidian": "an Obsidian vault",
    "basic-memory": "a folder of basic-memory",
    "mcp-memory-service": "an export of mcp-memory-service",
    "bookmarks": "an export of bookmarks",
}


class NotOfKind(ValueError):
    """The file is no such export; the message has the reason."""


PART = Part(commands=(
    Command("import", "add", "kb_cli.imported.import_command:run", "import an export or other data", (
        *ENGINE,
        *LABELS,
        arg("place", metavar="PATH",
             help="folder of kb export, into a base that no engine uses; or, into an engine: Obsidian vault, "
             "folder of basic-memory, JSON export of mcp-memory-service; bookmarks and read-later exports "
             "(HTML, CSV, JSON), whose pages are fetched"),
        arg("--from", dest="kind", choices=KINDS,
             help="format of PATH (default: detected from its contents)"),
        arg("--private", action="store_true", help="bookmarks: allow addresses that are not public"),
        arg("--whole-page", action="store_true", help="bookmarks: keep the navigation and footers of pages"),
        arg("--dry-run", action="store_true", help="show the documents to send, without sending them"),
        HOME, EMBEDDER,
    ), ("server", "engine")),
))  # fmt: skip
