"""`list_collections` and `get_collection_info`."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from kb_server.engine_client.ragler import Collection, CollectionDetail
from kb_server.services import Services
from kb_server.tool import Annotations, Call, NoArguments
from kb_server.toolsets.ragler.bounds import fitting
from kb_server.toolsets.ragler.names import CollectionNames
from kb_server.toolsets.ragler.parameters import CollectionIdParameter
from kb_server.toolsets.ragler.tool import MAX_CHARS, MAX_RESULT_CHARS, A, R, RaglerTool

MAX_DESCRIPTION_CHARS = 20_000


class ListCollectionsResult(msgspec.Struct, kw_only=True):
    """All collections. `hint` and `omitted` are there only where some were left out."""

    collections: list[Collection]
    omitted: int | UnsetType = UNSET
    hint: str | UnsetType = UNSET


class GetCollectionInfoArguments(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    collection_id: CollectionIdParameter


class GetCollectionInfoResult(CollectionDetail, kw_only=True):
    """A collection with all that is known of it. `truncated` is there where its description was cut."""

    truncated: bool | UnsetType = UNSET


class _CollectionsTool(RaglerTool[A, R]):
    """Whatever it is told of collections brings their names."""

    def __init__(self, services: Services, names: CollectionNames) -> None:
        super().__init__(services)
        self._names = names


class ListCollectionsTool(_CollectionsTool[NoArguments, ListCollectionsResult]):
    """Lists what can be searched."""

    name = "list_collections"
    title = "List collections"
    description = "List all available knowledge collections"
    annotations = Annotations(read_only=True, idempotent=True)
    arguments = NoArguments
    result = ListCollectionsResult
    max_result_chars = MAX_RESULT_CHARS

    async def run(self, _arguments: NoArguments, call: Call) -> ListCollectionsResult:
        """`GET /collections`."""
        backend = self.backend
        found = await backend.collections()
        self._names.learn(found)
        call.log["collections"] = len(found)  # `result_count` is what a search found, and is counted as such
        kept = fitting(found)
        omitted = len(found) - len(kept)
        return ListCollectionsResult(
            collections=kept,
            omitted=omitted or UNSET,
            hint=(
                f"{omitted} more collections were left out: an answer has {MAX_CHARS} characters at the most."
                if omitted
                else UNSET
            ),
        )


class GetCollectionInfoTool(_CollectionsTool[GetCollectionInfoArguments, GetCollectionInfoResult]):
    """Tells of one collection."""

    name = "get_collection_info"
    title = "Collection info"
    description = "Get detailed information about a specific collection"
    annotations = Annotations(read_only=True, idempotent=True)
    arguments = GetCollectionInfoArguments
    result = GetCollectionInfoResult

    async def run(self, arguments: GetCollectionInfoArguments, call: Call) -> GetCollectionInfoResult:
        """`GET /collections/{id}`."""
        call.log["collection_id"] = str(arguments.collection_id)
        backend = self.backend
        found = await backend.collection(str(arguments.collection_id))
        self._names.learn([found])
        members = msgspec.structs.asdict(found)
        if found.description is not UNSET and len(found.description) > MAX_DESCRIPTION_CHARS:
            members |= {"description": found.description[:MAX_DESCRIPTION_CHARS], "truncated": True}
        return GetCollectionInfoResult(**members)
