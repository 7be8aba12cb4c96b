"""`knowledge-status`."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from kb_contracts.api import models as m
from kb_contracts.api.operations import GET_STATUS
from kb_server.engine_client.errors import EngineFault
from kb_server.tool import Annotations, Call, NoArguments
from kb_server.toolsets.knowledge.tool import KnowledgeTool, Success, megabytes

NAME = "default"


class KnowledgeBase(msgspec.Struct, kw_only=True):
    """What the base holds. Sizes are those of the files and notes; null: the engine could not be asked."""

    name: str = NAME
    document_count: int | None = None
    total_chunks: int | None = None
    total_size_bytes: int | None = None
    total_size_mb: Annotated[float, Meta(description="in units of 1048576 bytes")] | None = None
    average_chunks_per_document: float | None = None
    storage_path: Annotated[str, Meta(description="the engine's data folder")] | None = None
    vector_db_path: Annotated[str, Meta(description="where the vectors lie")] | None = None


class BaseHealth(msgspec.Struct, kw_only=True):
    """How the base is; `issues` says what is wrong, and is absent where nothing is."""

    status: Literal["healthy", "degraded"]
    vector_db_connected: bool
    storage_accessible: bool
    embedding_model_loaded: bool
    issues: list[str] | UnsetType = UNSET


class BaseConfiguration(msgspec.Struct, kw_only=True):
    """`chunk_size` is in tokens of the embedding model, at the most; null: the engine could not be asked."""

    embedding_model: str | None = None
    chunk_size: int | None = None
    max_file_size_mb: float


class KnowledgeStatusResult(Success, kw_only=True):
    """An unhealthy base is told of with `success` true: the status itself could be told."""

    knowledge_base: KnowledgeBase
    health: BaseHealth
    configuration: BaseConfiguration
    last_updated: (
        Annotated[str, Meta(description="when a document was last added, changed or removed")] | None
    )


class KnowledgeStatusTool(KnowledgeTool[NoArguments, KnowledgeStatusResult]):
    """Tells how the base is, also where it cannot be reached."""

    name = "knowledge-status"
    title = "Status of the knowledge base"
    description = """\
Get knowledge base statistics and health status: how many documents and passages there are, how large they \
are, whether storage, vectors and embedding model work, and what is wrong where they do not."""
    annotations = Annotations(read_only=True, idempotent=True)
    arguments = NoArguments
    result = KnowledgeStatusResult

    async def run(self, _arguments: NoArguments, call: Call) -> KnowledgeStatusResult:
        """`GET /status`."""
        limit = megabytes(self.services.settings.max_upload_bytes)
        try:
            status = await self.engine.call(GET_STATUS)
        except EngineFault as fault:
            error = self.error_of(fault)
            call.log |= {"engine_error": error.code, "reason": error.message}
            return _out_of_reach(error.message, limit)
        return KnowledgeStatusResult(
            knowledge_base=_base(status),
            health=_health(status),
            configuration=BaseConfiguration(
                embedding_model=status.model.name,
                chunk_size=status.model.max_tokens,
                max_file_size_mb=limit,
            ),
            # A base that nobody has changed yet is as the engine found it when it started.
            last_updated=status.last_updated or status.started_at,
        )


def _base(status: m.Status) -> KnowledgeBase:
    documents, size = status.documents.total, status.storage.originals_bytes
    return KnowledgeBase(
        document_count=documents,
        total_chunks=status.chunks,
        total_size_bytes=size,
        total_size_mb=megabytes(size),
        average_chunks_per_document=round(status.chunks / documents, 1) if documents else 0.0,
        storage_path=status.storage.path,
        vector_db_path=status.storage.path,  # the engine keeps vectors and documents together
    )


def _health(status: m.Status) -> BaseHealth:
    """The engine says whether it can read its storage, where documents and vectors lie together."""
    loaded, accessible = status.model.loaded, status.storage.accessible
    issues = list(status.issues) or ([] if loaded else ["The embedding model is not loaded yet"])
    return BaseHealth(
        status="healthy" if accessible and not issues else "degraded",
        vector_db_connected=accessible,
        storage_accessible=accessible,
        embedding_model_loaded=loaded,
        issues=issues or UNSET,
    )


def _out_of_reach(why: str, limit: float) -> KnowledgeStatusResult:
    """What can be told where the engine tells nothing: that nothing of it can be used."""
    return KnowledgeStatusResult(
        knowledge_base=KnowledgeBase(),
        health=BaseHealth(
            status="degraded",
            vector_db_connected=False,
            storage_accessible=False,
            embedding_model_loaded=False,
            issues=[why],
        ),
        configuration=BaseConfiguration(max_file_size_mb=limit),
        last_updated=None,
    )
