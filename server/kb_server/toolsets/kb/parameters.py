"""Parameters that several tools take, described once for the agents that read them."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

MAX_WAIT_SECONDS = 50
"""Under the 60 seconds after which common clients give a call up."""

Collection = Annotated[
    str,
    Meta(
        description="collection: `documents` (reference material), `memory` (what you remember about users "
        "and work), `workspace` (drafts and intermediate results), or another name of lower-case letters, "
        "digits, - and _",
        examples=["memory"],
    ),
]
TagText = Annotated[str, Meta(min_length=1, max_length=200)]
NewTags = Annotated[
    list[TagText],
    Meta(max_length=63, description="tags to put on it; collections go in `collection`, not here"),
]
DocumentId = Annotated[int, Meta(ge=1, le=9_223_372_036_854_775_807, description="number of the document")]
Title = Annotated[
    str, Meta(min_length=1, max_length=500, description="title; left out: made from the content")
]
SourcePath = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=1_000,
        description="where it came from, such as a file path or URL; kb_get finds it by this",
        examples=["memory/feedback_testing.md"],
    ),
]
Metadata = Annotated[dict[str, Any], Meta(description="any JSON members to keep with it and get back")]
WaitSeconds = Annotated[
    float,
    Meta(
        ge=0,
        le=MAX_WAIT_SECONDS,
        description="seconds to wait for ingestion to end; 0 answers at once with the job",
    ),
]
Sha256 = Annotated[str, Meta(description="SHA-256 in hexadecimal; checked when given")]
UploadId = Annotated[str, Meta(description="from kb_upload_start")]
JobId = Annotated[
    str, Meta(min_length=1, max_length=64, description="from kb_addnote, kb_update_note or kb_upload_finish")
]
MaxChars = Annotated[
    int,
    Meta(ge=100, le=200_000, description="bound on the characters of text; what is left out is told"),
]
