"""The base class of the tools of `kb`, their texts for engine errors, and shared parameters."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from kb_server.tool import A, EngineWords, R
from kb_server.toolsets import ServiceTool

ENGINE_WORDS = EngineWords(
    {
        "engine_timeout": (
            "The engine accepted the request but did not respond. {detail} Try again; for a note or a file, "
            "look at kb_jobs first."
        ),
        "document_not_found": (
            "{document} was not found. Look it up with kb_search, or with kb_get by its source_path."
        ),
        "not_a_note": (
            "{document} is not a note; only notes can be updated in place. Upload the changed file instead, "
            "or add a note beside it."
        ),
        "version_conflict": "{document} has changed in the meantime. Read it again with kb_get, then repeat.",
        "job_not_found": "{job} was not found. kb_jobs without a job_id lists the recent ones.",
        "embedder_unavailable": (
            'The engine cannot load its embedding model: {detail} A search with mode "fts" needs none.'
        ),
    }
)


class KbTool(ServiceTool[A, R]):
    """A tool in the list that most agents read first, and that stays under 16 KB."""

    lean_result = True
    engine_words = ENGINE_WORDS


# --- parameters that several tools take, described once for the agents that read them ----------------

MAX_WAIT_SECONDS = 50
"""Under the 60 seconds after which common clients abandon a call."""

Collection = Annotated[
    str, Meta(description="documents (default), memory, workspace or another of a-z 0-9 - _")
]
NewTags = Annotated[list[str], Meta(description="other tags")]
DocumentId = Annotated[int, Meta(ge=1, description="its number")]
Title = Annotated[str, Meta(min_length=1, max_length=500, description="default: from the content")]
SourcePath = Annotated[
    str, Meta(min_length=1, max_length=1_000, description="path or URL; sent again, it replaces")
]
ANY_METADATA: dict[str, Any] = {
    "properties": {"source_type": {"type": "string"}},
    "additionalProperties": True,
}
"""The schema of metadata: some clients refuse an object without properties, and without the explicit `true`
OpenAI's strict mode would allow no other member."""
Metadata = Annotated[dict[str, Any], Meta(description="any JSON", extra_json_schema=ANY_METADATA)]
WaitSeconds = Annotated[float, Meta(ge=0, le=MAX_WAIT_SECONDS, description="seconds to wait")]
Sha256 = Annotated[str, Meta(description="in hexadecimal")]
UploadId = Annotated[str, Meta(description="from kb_upload_start")]
JobId = Annotated[str, Meta(description="from kb_addnote, kb_update_note or kb_upload_finish")]
MaxChars = Annotated[int, Meta(ge=100, le=200_000, description="bound on the text")]
