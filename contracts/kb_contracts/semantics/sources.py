"""Sources: the document of a submission under a source path, and the effect on the previous document.

A source is a collection and a path, and points to one document; several may point to the same. A document
that was also submitted without a source path cannot be replaced by a source, and stays when its last source
is removed. If a note without a source path is submitted again with one, the note gets that path.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kb_contracts.api.errors import EngineError
from kb_contracts.api.models import Document, Job, LeftOut, SourceOutcome
from kb_contracts.api.ragler import PREFIX


@dataclass(frozen=True, slots=True)
class Holder:
    """A document that a source points to. `unsourced`: it was also submitted without a source path."""

    id: int
    source_paths: Sequence[str]
    unsourced: bool

    def goes_with(self, path: str) -> bool:
        """True if this source is its only holder."""
        return not self.unsourced and list(self.source_paths) == [path]


def takes_over(kind: str, source_paths: Sequence[str]) -> bool:
    """True if a source path under which a document is submitted again becomes its only holder."""
    return kind == "note" and not source_paths


@dataclass(frozen=True, slots=True)
class Plan:
    """The effect of a submission. `target` is its document; None: a new one.

    `swaps`: the content of the target is replaced; otherwise it is the same already. The source leaves the
    documents `detached`, and the documents `removed` are removed with it.
    """

    outcome: SourceOutcome
    target: int | None
    swaps: bool = False
    detached: Sequence[int] = ()
    removed: Sequence[int] = ()

    @property
    def documents(self) -> frozenset[int]:
        """The existing documents that are affected."""
        target = () if self.target is None else (self.target,)
        return frozenset((*target, *self.detached, *self.removed))


def plan(path: str | None, twin: int | None, holders: Sequence[Holder]) -> Plan:
    """Return the effect of a submission under `path`.

    `twin` is the document with the same content; `holders` are the documents that the source points to, the
    oldest first. There are several if one was moved into the collection of another.
    """
    if path is None:
        return Plan("created" if twin is None else "unchanged", twin)
    own = [each for each in holders if each.goes_with(path)]
    target = twin if twin is not None else own[0].id if own else None
    leaving = [each for each in holders if each.id != target]
    if not holders:
        outcome: SourceOutcome = "created"
    else:
        outcome = "unchanged" if twin is not None and not leaving else "replaced"
    return Plan(
        outcome,
        target,
        swaps=twin is None and target is not None,
        detached=[each.id for each in leaving if each not in own],
        removed=[each.id for each in leaving if each in own],
    )


def what_stays(job: Job, document: Document | None) -> str:
    """Return a remark on the earlier document of a source that got another text, or an empty string.

    `document` is that of the completed job, None if it is not known.
    """
    if job.outcome != "replaced" or document is None:
        return ""
    if job.deduplicated:
        return "what its source_path led to before is removed, unless it was also added in another way"
    if document.version == 1:  # a new document, since the earlier one has further holders
        return "what its source_path led to before stays as a document, for it was also added in another way"
    return ""


def source_not_found(path: str) -> EngineError:
    return EngineError("source_not_found", f"The document does not come from {path!r}.")


def source_scope(tags: Sequence[str], dedup_scope: str) -> str:
    """Return the scope in which a source path is unique: the last named collection, or the `dedup_scope`."""
    return next((tag for tag in reversed(tags) if tag.startswith(PREFIX)), dedup_scope)


def scope_after_tags(dedup_scope: str, added: Sequence[str]) -> str:
    """Return the `dedup_scope` of a document after adding these tags: a collection's scope follows moves."""
    return source_scope(added, dedup_scope) if dedup_scope.startswith(PREFIX) else dedup_scope


def scope_after_removal(dedup_scope: str, removed: str, left: Sequence[str]) -> str:
    """Return the `dedup_scope` of a document after removing a tag: a remaining collection, if any."""
    is_left = dedup_scope == removed and removed.startswith(PREFIX)
    return source_scope(left, dedup_scope) if is_left else dedup_scope


def left_out(
    document: Document, title: str | None, tags: Sequence[str], metadata: Mapping[str, Any]
) -> list[LeftOut]:
    """Return the parts of a submission that its document did not take, because it has its own.

    `title` is None if it was not sent. Empty metadata are never reported.
    """
    left: list[LeftOut] = []
    if title not in (None, document.title):
        left.append("title")
    if not set(tags) <= set(document.tags):
        left.append("tags")
    if metadata and metadata != document.metadata:
        left.append("metadata")
    return left
