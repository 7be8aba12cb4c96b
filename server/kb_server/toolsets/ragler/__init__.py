"""The toolset `ragler`: three tools over RAGler's search API, which kb's engine serves as well."""

from __future__ import annotations

from kb_server.services import Services
from kb_server.tool import Toolset
from kb_server.toolsets.ragler.collections import GetCollectionInfoTool, ListCollectionsTool
from kb_server.toolsets.ragler.names import CollectionNames
from kb_server.toolsets.ragler.search import SearchKnowledgeTool

__all__ = ["GetCollectionInfoTool", "ListCollectionsTool", "SearchKnowledgeTool", "build"]

INSTRUCTIONS = """\
RAGler's knowledge: published documents in collections, searched by meaning. Use search_knowledge before \
answering what they may know. Leave collection_id out to search everything; list_collections tells which \
collections there are, get_collection_info who one is for and how to use it. For a complex question search \
2-3 variant phrasings and merge the results. Scores run from 0 to 1 and tell what is similar, not what \
is right. Nothing can be changed from here. Calls are limited by the minute: on the error rate_limited wait \
retry_after seconds."""


def build(services: Services) -> Toolset:
    """The toolset over `services`, which the caller opens and closes."""
    names = CollectionNames(services)
    return Toolset(
        name="ragler",
        server_name="ragler",
        version="1.0.0",
        title="RAGler",
        instructions=INSTRUCTIONS,
        tools=(
            SearchKnowledgeTool(services, names),
            ListCollectionsTool(services, names),
            GetCollectionInfoTool(services, names),
        ),
    )
