"""`search_knowledge`."""

from __future__ import annotations

from time import perf_counter
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from kb_contracts.api.models import MAX_QUERY_CHARS, MAX_TAGS
from kb_contracts.api.ragler import PREFIX, SourceType, VectorFilters, VectorSearchRequest
from kb_server.engine_client.errors import Refused
from kb_server.engine_client.ragler import Passage, PassageMetadata, Passages, Ragler
from kb_server.observability.redaction import sanitised
from kb_server.services import Services
from kb_server.tool import INVALID, WORDS, Annotations, Call, ToolError
from kb_server.toolsets.ragler.bounds import chars, fitting
from kb_server.toolsets.ragler.dates import span
from kb_server.toolsets.ragler.names import CollectionNames
from kb_server.toolsets.ragler.parameters import CollectionIdParameter
from kb_server.toolsets.ragler.tool import MAX_CHARS, MAX_RESULT_CHARS, RaglerTool

DEFAULT_LIMIT = 10
_MOST_FOR_ONE = 6
"""So many characters of JSON may one character take."""

_DATES = "ISO 8601 date or time, inclusive, such as 2026-01-31 or 2026-01-31T09:30:00Z"


class SearchFilters(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Only documents that fit all of these."""

    source_type: Annotated[SourceType, Meta(description="only documents from this kind of source")] | None = (
        None
    )
    date_from: Annotated[str, Meta(description=f"only documents changed then or later: {_DATES}")] | None = (
        None
    )
    date_to: (
        Annotated[
            str,
            Meta(
                description=f"only documents changed then or earlier: {_DATES}; a date is its whole UTC day"
            ),
        ]
        | None
    ) = None
    tags: (
        Annotated[
            list[Annotated[str, Meta(min_length=1, max_length=200)]],
            Meta(max_length=MAX_TAGS, description="only documents with at least one of these tags"),
        ]
        | None
    ) = None


class SearchKnowledgeArguments(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    query: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=MAX_QUERY_CHARS,
            description="a question or words, as people say it; the search goes by meaning",
            extra=WORDS,
            examples=["How do I authenticate API requests?"],
        ),
    ]
    collection_id: CollectionIdParameter | None = None
    limit: Annotated[int, Meta(ge=1, le=100, description="how many results at the most")] | None = (
        DEFAULT_LIMIT
    )
    filters: SearchFilters | None = None


class FoundMetadata(PassageMetadata, kw_only=True):
    """Where a passage is from; `collection_id` is null where it is in no collection."""

    collection_id: Annotated[str, Meta(description="UUID of the passage's collection")] | None


class FoundPassage(msgspec.Struct, kw_only=True):
    """A passage that answers. `truncated` is there where its content was cut."""

    content: str
    source_url: str | UnsetType = UNSET
    score: Annotated[float, Meta(ge=0, le=1)]
    metadata: FoundMetadata
    truncated: bool | UnsetType = UNSET


class SearchKnowledgeResult(msgspec.Struct, kw_only=True):
    """Best first. `hint` and `omitted` are there only where results were left out or cut."""

    results: list[FoundPassage]
    total: Annotated[int, Meta(description="how many passages match")]
    query: str
    execution_time: Annotated[float, Meta(description="milliseconds")]
    omitted: Annotated[int, Meta(description="results that are not here: too long together")] | UnsetType = (
        UNSET
    )
    hint: str | UnsetType = UNSET


class SearchKnowledgeTool(RaglerTool[SearchKnowledgeArguments, SearchKnowledgeResult]):
    """Searches one collection or all."""

    name = "search_knowledge"
    title = "Search knowledge"
    description = "Search across knowledge collections with semantic + hybrid filtering"
    annotations = Annotations(read_only=True, idempotent=True)
    arguments = SearchKnowledgeArguments
    result = SearchKnowledgeResult
    max_result_chars = MAX_RESULT_CHARS

    def __init__(self, services: Services, names: CollectionNames) -> None:
        super().__init__(services)
        self._names = names

    async def run(self, arguments: SearchKnowledgeArguments, call: Call) -> SearchKnowledgeResult:
        """`POST /vector/search`; in a collection its name is asked for first, where it is not known."""
        call.log["query"] = sanitised(arguments.query)
        if arguments.collection_id is not None:
            call.log["collection_id"] = str(arguments.collection_id)
        filters, backend = _filters(arguments), self.backend
        began = perf_counter()
        found = await self._found(backend, await self._request(arguments, filters))
        took = (perf_counter() - began) * 1000
        result = _result(found, arguments, took)
        call.log["result_count"] = len(result.results)
        return result

    async def _found(self, backend: Ragler, request: VectorSearchRequest) -> Passages:
        try:
            return await backend.search(request)
        except Refused:
            self._names.forget(request.collection_id)  # it may be what the backend no longer knows
            raise

    async def _request(
        self, arguments: SearchKnowledgeArguments, filters: VectorFilters | None
    ) -> VectorSearchRequest:
        within = arguments.collection_id
        return VectorSearchRequest(
            query=arguments.query,
            collection_name=None if within is None else await self._names.of(str(within)),
            collection_id=None if within is None else str(within),
            limit=arguments.limit or DEFAULT_LIMIT,
            filters=filters,
        )


def _filters(arguments: SearchKnowledgeArguments) -> VectorFilters | None:
    """What is asked of the backend; None where nothing is.

    Raises:
        ToolError: `invalid_parameter` or `contradiction`.
    """
    given = arguments.filters or SearchFilters()
    for tag in given.tags or []:
        if tag.startswith(PREFIX):
            raise ToolError(
                INVALID,
                f"The tag {tag[:80]!r} names a collection. Leave it out of `filters.tags` and pass the "
                "collection's id in the parameter `collection_id`; list_collections tells it.",
                parameter="filters.tags",
            )
    date_from, date_to = span(given.date_from, given.date_to)
    filters = VectorFilters(
        source_type=given.source_type, date_from=date_from, date_to=date_to, tags=given.tags or []
    )
    return None if filters == VectorFilters() else filters


def _result(found: Passages, arguments: SearchKnowledgeArguments, took: float) -> SearchKnowledgeResult:
    """`took` is how long we waited, in milliseconds, for a backend that does not tell how long it took."""
    within = None if arguments.collection_id is None else str(arguments.collection_id)
    # A backend may send more than it was asked for.
    passages = [_passage(passage, within) for passage in found.results[: arguments.limit or DEFAULT_LIMIT]]
    kept = fitting(passages) or [cut for passage in passages[:1] if (cut := _cut(passage)) is not None]
    omitted = len(passages) - len(kept)
    total = len(found.results) if found.total is UNSET else found.total
    return SearchKnowledgeResult(
        results=kept,
        total=max(0, total),
        query=arguments.query,
        execution_time=round(took, 3) if found.execution_time is UNSET else found.execution_time,
        omitted=omitted or UNSET,
        hint=_hint(kept, omitted),
    )


def _passage(passage: Passage, within: str | None) -> FoundPassage:
    members = {name: getattr(passage.metadata, name) for name in PassageMetadata.__struct_fields__}
    return FoundPassage(
        content=passage.content,
        source_url=passage.source_url,
        score=passage.score,
        metadata=FoundMetadata(**{**members, "collection_id": passage.metadata.collection_id or within}),
    )


def _cut(passage: FoundPassage) -> FoundPassage | None:
    """The passage with so much of its content as fits; None where it is something else that is too long."""
    bare = msgspec.structs.replace(passage, content="", truncated=True)
    room = (MAX_CHARS - chars(bare)) // _MOST_FOR_ONE
    if room <= 0:
        return None
    return msgspec.structs.replace(bare, content=passage.content[:room])


def _hint(kept: list[FoundPassage], omitted: int) -> str | UnsetType:
    hints = []
    if omitted:
        hints.append(
            f"{omitted} more results were left out: an answer has {MAX_CHARS} characters at the most; "
            "narrow the search with collection_id or filters."
        )
    if any(passage.truncated is True for passage in kept):
        hints.append("A truncated content goes on at its source_url.")
    return " ".join(hints) or UNSET
