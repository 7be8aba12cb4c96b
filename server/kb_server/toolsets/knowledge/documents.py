"""`knowledge-show`, `knowledge-remove` and `knowledge-clear`."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from kb_contracts.api import models as m
from kb_contracts.api.operations import (
    CLEAR_DOCUMENTS,
    DELETE_DOCUMENT,
    GET_DOCUMENT,
    GET_STATUS,
    LIST_DOCUMENTS,
    WITHOUT_CHUNKS,
    ClearQuery,
    DocumentsQuery,
)
from kb_server.tool import MISSING, Annotations, Call, ToolError
from kb_server.toolsets.knowledge.errors import document_not_found
from kb_server.toolsets.knowledge.tool import (
    CONFIRM,
    KnowledgeTool,
    Success,
    document_format,
    is_uuid,
    megabytes,
    name_of,
)

PHRASE = "DELETE ALL"

SortField = Literal["date_added", "filename", "size"]

_SORTED_BY: dict[SortField, m.SortBy] = {
    "date_added": "created_at",
    "filename": "filename",
    "size": "size_bytes",
}


# --- knowledge-show -------------------------------------------------------------------------------


class KnowledgeShowArguments(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    limit: Annotated[int, Meta(ge=1, le=1_000, description="how many at the most")] = 100
    offset: Annotated[int, Meta(ge=0, le=m.MAX_INTEGER, description="how many to pass over")] = 0
    sort_by: Annotated[SortField, Meta(description="what they are sorted by")] = "date_added"
    sort_order: Annotated[m.SortOrder, Meta(description="asc or desc")] = "desc"


class ListedDocument(msgspec.Struct, kw_only=True):
    """A document. `processing_status` is `empty` where no text was found in it."""

    id: str
    filename: str
    format: str
    size_bytes: int
    date_added: str
    chunk_count: int
    processing_status: Literal["completed", "empty"]
    processing_method: str


class KnowledgeShowResult(Success, kw_only=True):
    """One page; `total_count` counts the documents of all pages."""

    documents: list[ListedDocument]
    total_count: int
    limit: int
    offset: int
    message: str | UnsetType = UNSET


class KnowledgeShowTool(KnowledgeTool[KnowledgeShowArguments, KnowledgeShowResult]):
    """Lists the documents of all collections."""

    name = "knowledge-show"
    title = "List the documents"
    description = """\
List all documents in the knowledge base with metadata: id, file name, format, size, when it was added, and \
how many passages it has. The newest first, unless sort_by and sort_order say otherwise.

Example: {"limit": 50, "sort_by": "size", "sort_order": "desc"}"""
    annotations = Annotations(read_only=True, idempotent=True)
    arguments = KnowledgeShowArguments
    result = KnowledgeShowResult
    max_result_chars = 400_000

    async def run(self, arguments: KnowledgeShowArguments, _call: Call) -> KnowledgeShowResult:
        """`GET /documents`."""
        query = DocumentsQuery(
            limit=arguments.limit,
            offset=arguments.offset,
            sort_by=_SORTED_BY[arguments.sort_by],
            sort_order=arguments.sort_order,
        )
        found = await self.engine.call(LIST_DOCUMENTS, query=query)
        return KnowledgeShowResult(
            documents=[_listed(document) for document in found.documents],
            total_count=found.total,
            limit=arguments.limit,
            offset=arguments.offset,
            message=UNSET if found.total else "Knowledge base is empty",
        )


def _listed(document: m.Document) -> ListedDocument:
    return ListedDocument(
        id=document.uid,
        filename=name_of(document),
        format=document_format(document),
        size_bytes=document.size_bytes,
        date_added=document.created_at,
        chunk_count=document.chunk_count,
        processing_status="empty" if document.status == "empty" else "completed",
        processing_method=document.extraction_method,
    )


# --- knowledge-remove -----------------------------------------------------------------------------


class KnowledgeRemoveArguments(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    document_id: Annotated[
        str,
        Meta(min_length=1, max_length=100, description="from knowledge-show, knowledge-search or a task"),
    ]
    confirm: Annotated[bool, Meta(description="true: remove it; false: only show what would be removed")] = (
        False
    )


class KnowledgeRemoveResult(Success, kw_only=True):
    """What is gone."""

    document_id: str
    filename: str
    chunks_removed: int
    message: str = "Document removed successfully"


class KnowledgeRemoveTool(KnowledgeTool[KnowledgeRemoveArguments, KnowledgeRemoveResult]):
    """Removes a document for good."""

    name = "knowledge-remove"
    title = "Remove a document"
    description = """\
Remove a specific document from the knowledge base, with all its passages. This cannot be undone, so that it \
is done only with confirm=true; without, the answer shows the document.

Example: {"document_id": "3f0c5d7e-9a53-4f1c-8e2b-0b8f3f2f9b11", "confirm": true}"""
    annotations = Annotations(destructive=True, idempotent=True)
    arguments = KnowledgeRemoveArguments
    result = KnowledgeRemoveResult

    async def run(self, arguments: KnowledgeRemoveArguments, _call: Call) -> KnowledgeRemoveResult:
        """`GET /documents/{id}`, then `DELETE` of it."""
        document_id = arguments.document_id
        if not is_uuid(document_id):  # the engine would take its own number too, which is no id here
            raise document_not_found(document_id)
        document = await self.engine.call(
            GET_DOCUMENT, path={"document_id": document_id.lower()}, query=WITHOUT_CHUNKS
        )
        if not arguments.confirm:
            raise _unconfirmed(document)
        removed = await self.engine.call(DELETE_DOCUMENT, path={"document_id": document.uid})
        return KnowledgeRemoveResult(
            document_id=document.uid, filename=name_of(document), chunks_removed=removed.chunks
        )


def _unconfirmed(document: m.Document) -> ToolError:
    found = {"id": document.uid, "filename": name_of(document), "chunks": document.chunk_count}
    return ToolError(CONFIRM, "Set confirm=true to remove this document", document=found)


# --- knowledge-clear ------------------------------------------------------------------------------


class KnowledgeClearArguments(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    confirm: Annotated[bool, Meta(description="must be true")]
    confirmation_phrase: Annotated[
        str, Meta(max_length=100, description=f"must be {PHRASE}, exactly", examples=[PHRASE])
    ]


class KnowledgeClearResult(Success, kw_only=True):
    """What is gone. `storage_freed_mb` is the size of the files and notes, in units of 1048576 bytes."""

    documents_removed: int
    embeddings_removed: int
    storage_freed_mb: float
    message: str = "Knowledge base cleared successfully"


class KnowledgeClearTool(KnowledgeTool[KnowledgeClearArguments, KnowledgeClearResult]):
    """Empties the base."""

    name = "knowledge-clear"
    title = "Clear the knowledge base"
    description = """\
Remove all documents from the knowledge base: of every collection, notes and memories among them. Tasks \
under way are cancelled; collections that were described stay, empty. This cannot be undone; ask the user \
first.

Example: {"confirm": true, "confirmation_phrase": "DELETE ALL"}"""
    annotations = Annotations(destructive=True, idempotent=True)
    arguments = KnowledgeClearArguments
    result = KnowledgeClearResult

    async def run(self, arguments: KnowledgeClearArguments, _call: Call) -> KnowledgeClearResult:
        """`DELETE /documents`."""
        if not arguments.confirm or arguments.confirmation_phrase != PHRASE:
            raise await self._unconfirmed()
        removed = await self.engine.call(CLEAR_DOCUMENTS, query=ClearQuery(confirm=True))
        return KnowledgeClearResult(
            documents_removed=removed.documents,
            embeddings_removed=removed.chunks,  # a passage has one embedding
            storage_freed_mb=megabytes(removed.bytes),
        )

    async def refusal(self, error: ToolError, _call: Call) -> ToolError:
        """A confirmation that is left out is one that is not given."""
        return await self._unconfirmed() if error.code == MISSING else error

    async def _unconfirmed(self) -> ToolError:
        status = await self.engine.call(GET_STATUS)
        return ToolError(
            CONFIRM,
            f"This action will delete ALL documents. Set confirm=true and confirmation_phrase='{PHRASE}' to "
            "proceed",
            current_document_count=status.documents.total,
        )
