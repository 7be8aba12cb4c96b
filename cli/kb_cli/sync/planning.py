"""The plan that brings a base in step with a source."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

import msgspec

from kb_cli.add import Found
from kb_cli.sync.source import Listing
from kb_contracts.api import models as m


class Leaving(msgspec.Struct, frozen=True):
    """A source to remove from a document; `moved_to`: the new path of its file."""

    source: str
    document_id: int
    moved_to: str | None = None


class Plan(msgspec.Struct, frozen=True):
    """The sources to send, in the order of the listing, and the sources to remove.

    A replaced file may prove to be unchanged when it is fetched. Moved files are sent as well: the engine
    knows the content by its hash, and does not ingest it again.
    """

    added: list[str]
    replaced: list[str]
    moved: list[Leaving]
    removed: list[Leaving]
    unchanged: int
    skipped: int
    left_out: dict[str, str] = {}
    unreadable: dict[str, str] = {}

    def to_send(self, listing: Listing) -> list[Found]:
        """Return the new or changed files of the listing; a moved one is sent under its present path."""
        moved = [each.moved_to for each in self.moved if each.moved_to]
        return [listing.files[source] for source in (*self.added, *self.replaced, *moved)]

    def lines(self) -> list[str]:
        """Return the steps of the plan, one line each, for people."""
        return [
            *(f"add\t{source}" for source in self.added),
            *(f"replace\t{source}" for source in self.replaced),
            *(f"move\t{each.source}\tto {each.moved_to}" for each in self.moved),
            *(f"remove\t{each.source}\tdocument {each.document_id}" for each in self.removed),
            *(f"leave out\t{source}\t{reason}" for source, reason in self.left_out.items()),
            *(f"cannot read\t{source}\t{reason}" for source, reason in self.unreadable.items()),
        ]


def plan(
    local: Listing, documents: Iterable[m.Document], prefix: str, owns: Callable[[m.Document, str], bool]
) -> Plan:
    """Return the plan that makes the sources under `prefix` the listed files.

    `documents` are all documents with such a source; only sources that the listing `owns` are removed. A
    source whose file may only be unreadable is kept, and all are if the listing is not complete.
    """
    holders: dict[str, list[m.Document]] = defaultdict(list)
    lost: dict[str, list[Leaving]] = defaultdict(list)
    for document in documents:
        for source in document.source_paths:
            if not source.startswith(prefix):
                continue
            holders[source].append(document)
            is_absent = local.is_complete and source not in local.digests and not local.may_hold(source)
            if is_absent and owns(document, source):
                lost[document.sha256].append(Leaving(source, document.id))
    added, replaced, moved = [], [], []
    unchanged = 0
    for source, digest in local.digests.items():
        standing = [document.sha256 for document in holders.get(source, ())]
        if standing == [digest]:
            unchanged += 1
        elif standing:
            replaced.append(source)
        elif digest is not None and lost[digest]:
            moved.append(msgspec.structs.replace(lost[digest].pop(0), moved_to=source))
        else:
            added.append(source)
    removed = sorted((each for left in lost.values() for each in left), key=lambda each: each.source)
    return Plan(added, replaced, moved, removed, unchanged, local.skipped, local.left_out, local.unreadable)
