"""The toolset `kb`: the nine tools through which agents use a knowledge base."""

from __future__ import annotations

from kb_server.services import SERVER_VERSION, Services
from kb_server.tool import Toolset
from kb_server.toolsets.kb.documents import KbGetTool
from kb_server.toolsets.kb.notes import KbAddnoteTool, KbUpdateNoteTool
from kb_server.toolsets.kb.search import KbSearchTool
from kb_server.toolsets.kb.state import KbJobsTool, KbStatusTool
from kb_server.toolsets.kb.uploads import KbUploadChunkTool, KbUploadFinishTool, KbUploadStartTool

__all__ = [
    "KbAddnoteTool",
    "KbGetTool",
    "KbJobsTool",
    "KbSearchTool",
    "KbStatusTool",
    "KbUpdateNoteTool",
    "KbUploadChunkTool",
    "KbUploadFinishTool",
    "KbUploadStartTool",
    "build",
]

INSTRUCTIONS = """\
A knowledge base: documents, notes and memories, searched by words and by meaning. Search with kb_search \
before answering what the base may know; for complex questions send 2-3 variant phrasings, merge and \
deduplicate the results, and reorder them by your own judgement. Remember with kb_addnote (collection \
`memory`), and update the existing note with kb_update_note instead of adding a second one. Upload files \
with kb_upload_start; if you can run commands, send the file to its upload_url with curl -g -T."""


def build(services: Services) -> Toolset:
    """The toolset over `services`, which the caller opens and closes."""
    return Toolset(
        name="kb",
        server_name="kb",
        version=SERVER_VERSION,
        title="Knowledge base",
        instructions=INSTRUCTIONS,
        tools=(
            KbSearchTool(services),
            KbAddnoteTool(services),
            KbUploadStartTool(services),
            KbUploadChunkTool(services),
            KbUploadFinishTool(services),
            KbUpdateNoteTool(services),
            KbGetTool(services),
            KbStatusTool(services),
            KbJobsTool(services),
        ),
    )
