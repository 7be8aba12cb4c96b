"""`kb sync` and `kb watch`: keep a collection in step with a folder or another source of files.

source.py        the port: a source lists its files and opens each
folder.py        the files of a folder, and their digests
repository.py    the files of a Git repository
site.py          the pages of a sitemap or feed
storage.py       the files of an S3 bucket or a WebDAV folder
planning.py      the sources to send and to remove, from that and from the documents of the base
sync_command.py  the two commands

The base has the sources and the content hash of each document, and no other state is needed between two runs.
So the next run resumes an interrupted one, and several machines may keep their folders in one base.
"""

from __future__ import annotations

from kb_cli.commands import ENGINE, LABELS, Command, arg, number
from kb_cli.parts import Part

_SYNC = (
    arg(
        "source",
        metavar="SOURCE",
        help="folder, URL of a sitemap or feed, git+https://..., s3://... or webdavs://...",
    ),
    arg("--ref", default="", help="branch, tag or commit of a repository, also of one in a folder"),
    arg("--credentials", metavar="FILE", help="JSON file: user and password; for s3 key and secret"),
    arg("--private", action="store_true", help="allow addresses that are not public"),
    arg("--any-site", action="store_true", help="take pages of other hosts than that of the sitemap or feed"),
    arg("--whole-page", action="store_true", help="keep the navigation and footers of pages"),
    arg("--yes", action="store_true", help="remove all documents if the source has no files left"),
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
        arg("--every", type=number(float, 1, 100_000), default=10.0, metavar="MINUTES",
             help="longest time between two looks (default 10)"),
    ), ("server",)),
))  # fmt: skip
