"""The plan that brings a base in step with a folder."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import msgspec

from kb_cli.sync.folder import Listing
from kb_contracts.api import models as m


class Leaving(msgspec.Struct, frozen=True):
    """A source to remove from a document; `moved_to`: the new path of its file."""

    source: str
    document_id: int
    moved_to: str | None = None


class Plan(msgspec.Struct, frozen=True):
    """The sources to send, in the order of the folder, and the sources to remove.

    Moved files are sent as well: the engine knows the content by its hash, and does not ingest it again.
    """

    added: list[str]
    replaced: list[str]
    moved: list[Leaving]
    removed: list[Leaving]
    unchanged: int
    skipped: int
    left_out: dict[str, str] = {}

    def lines(self) -> list[str]:
        """Return the steps of the plan, one line each, for people."""
        return [
            *(f"add\t{source}" for source in self.added),
            *(f"replace\t{source}" for source in self.replaced),
            *(f"move\t{each.source}\tto {each.moved_to}" for each in self.moved),
            *(f"remove\t{each.source}\tdocument {each.document_id}" for each in self.removed),
            *(f"leave out\t{source}\t{reason}" for source, reason in self.left_out.items()),
        ]


def plan(local: Listing, documents: Iterable[m.Document], prefix: str) -> Plan:
    """Return the plan that makes the sources under `prefix` the files of the folder.

    `documents` are all documents with such a source. A source whose file may only be unreadable is kept.
    """
    holders: dict[str, list[m.Document]] = defaultdict(list)
    lost: dict[str, list[Leaving]] = defaultdict(list)
    for document in documents:
        for source in document.source_paths:
            if not source.startswith(prefix):
                continue
            holders[source].append(document)
            if source not in local.digests and not local.may_hold(source):
                lost[document.sha256].append(Leaving(source, document.id))
    added, replaced, moved = [], [], []
    unchanged = 0
    for source, digest in local.digests.items():
        standing = [document.sha256 for document in holders.get(source, ())]
        if standing == [digest]:
            unchanged += 1
        elif standing:
            replaced.append(source)
        elif lost[digest]:
            moved.append(msgspec.structs.replace(lost[digest].pop(0), moved_to=source))
        else:
            added.append(source)
    removed = sorted((each for left in lost.values() for each in left), key=lambda each: each.source)
    left_out = {str(path): reason for path, reason in local.left_out.items()}
    return Plan(added, replaced, moved, removed, unchanged, local.skipped, left_out)
