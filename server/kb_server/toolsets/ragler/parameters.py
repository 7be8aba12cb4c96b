"""Parameters of the tools, described for the agents that read them."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from msgspec import Meta

CollectionIdParameter = Annotated[
    UUID,
    Meta(
        description="UUID of a collection; list_collections tells them",
        examples=["8f0c5d7e-9a53-5f1c-8e2b-0b8f3f2f9b11"],
    ),
]
