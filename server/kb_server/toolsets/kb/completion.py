"""Completion of collections, tags, and the paths and ids of documents, from the content of the base."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kb_contracts.api.operations import LIST_DOCUMENTS, LIST_TAGS, DocumentsQuery, TagsQuery
from kb_server.collection_tags import PREFIX, tag_of
from kb_server.offers import Completion
from kb_server.services import Services
from kb_server.tool import ToolError

MOST_COMPLETIONS = 100

_LOOKED_AT = 1_000
_LONGEST_TAG, _LONGEST_PATH = 200, 1_000
"""Maximum prefix lengths that the engine accepts."""


class BaseCompleter:
    """Completes the arguments `collection`, `tag`, `path` and `id` of prompts and resource templates."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def complete(self, argument: str, value: str, given: Mapping[str, str]) -> Completion:
        """Complete an argument; paths and ids are limited to the collection in `given`, if there is one."""
        match argument:
            case "collection":
                return await self._collections(value)
            case "tag":
                return await self._tags(value)
            case "path":
                return await self._paths(value, given)
            case "id":
                return await self._ids(value)
        return Completion()

    async def _collections(self, value: str) -> Completion:
        if len(prefix := PREFIX + value) > _LONGEST_TAG:
            return Completion()
        listed = await self._services.engine.call(
            LIST_TAGS, query=TagsQuery(prefix=prefix, limit=MOST_COMPLETIONS)
        )
        names = [each.tag.removeprefix(PREFIX) for each in listed.tags]
        return _completion(names, seen_all=listed.total <= len(names))

    async def _tags(self, value: str) -> Completion:
        if len(value) > _LONGEST_TAG:
            return Completion()
        listed = await self._services.engine.call(LIST_TAGS, query=TagsQuery(prefix=value, limit=_LOOKED_AT))
        tags = [each.tag for each in listed.tags if not each.tag.startswith(PREFIX)]
        return _completion(tags, seen_all=listed.total <= len(listed.tags))

    async def _paths(self, value: str, given: Mapping[str, str]) -> Completion:
        """Complete a path, the newest first. A document with several paths is listed by one of them."""
        if len(value) > _LONGEST_PATH:
            return Completion()
        try:
            tag = tag_of(given["collection"]) if given.get("collection") else None
        except ToolError:  # not a valid name: there is no such collection
            return Completion()
        query = DocumentsQuery(
            source_path_prefix=value or None, tag=tag, sort_by="updated_at", limit=_LOOKED_AT
        )
        listed = await self._services.engine.call(LIST_DOCUMENTS, query=query)
        paths = [each.source_path for each in listed.documents if each.source_path is not None]
        fitting = list(dict.fromkeys(path for path in paths if path.startswith(value)))
        return _completion(fitting, seen_all=listed.total <= len(listed.documents))

    async def _ids(self, value: str) -> Completion:
        query = DocumentsQuery(sort_by="updated_at", limit=_LOOKED_AT)
        listed = await self._services.engine.call(LIST_DOCUMENTS, query=query)
        ids = [str(each.id) for each in listed.documents]
        fitting = [each for each in ids if each.startswith(value)]
        return _completion(fitting, seen_all=listed.total <= len(ids))


def _completion(values: Sequence[str], *, seen_all: bool) -> Completion:
    return Completion(values[:MOST_COMPLETIONS], more=len(values) > MOST_COMPLETIONS or not seen_all)
