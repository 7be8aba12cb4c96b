"""Parameters that several tools take, described once for the agents that read them."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

MAX_WAIT_SECONDS = 50
"""Under the 60 seconds after which common clients give a call up."""

Collection = Annotated[
    str,
    Meta(description="documents (default), memory, workspace or another name of a-z 0-9 - _"),
]
NewTags = Annotated[
    list[str],
    Meta(description="other tags"),
]
DocumentId = Annotated[int, Meta(ge=1, description="its number")]
Title = Annotated[str, Meta(min_length=1, max_length=500, description="default: from the content")]
SourcePath = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=1_000,
        description="path or URL; kb_get finds it by this",
    ),
]
Metadata = Annotated[dict[str, Any], Meta(description="JSON to keep with it")]
WaitSeconds = Annotated[
    float,
    Meta(
        ge=0,
        le=MAX_WAIT_SECONDS,
        description="seconds to wait for ingestion to end",
    ),
]
Sha256 = Annotated[str, Meta(description="SHA-256 in hexadecimal")]
UploadId = Annotated[str, Meta(description="from kb_upload_start")]
JobId = Annotated[str, Meta(description="from kb_addnote, kb_update_note or kb_upload_finish")]
MaxChars = Annotated[
    int,
    Meta(ge=100, le=200_000, description="bound on the text"),
]
