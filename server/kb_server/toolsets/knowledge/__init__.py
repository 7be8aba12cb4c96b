"""The toolset `knowledge`: seven tools over the whole base, whatever its collections hold."""

from __future__ import annotations

from kb_server.services import Services
from kb_server.tool import Toolset
from kb_server.toolsets.knowledge.add import KnowledgeAddTool
from kb_server.toolsets.knowledge.documents import KnowledgeClearTool, KnowledgeRemoveTool, KnowledgeShowTool
from kb_server.toolsets.knowledge.search import KnowledgeSearchTool
from kb_server.toolsets.knowledge.status import KnowledgeStatusTool
from kb_server.toolsets.knowledge.tasks import KnowledgeTaskStatusTool, canceller

__all__ = [
    "KnowledgeAddTool",
    "KnowledgeClearTool",
    "KnowledgeRemoveTool",
    "KnowledgeSearchTool",
    "KnowledgeShowTool",
    "KnowledgeStatusTool",
    "KnowledgeTaskStatusTool",
    "build",
]

INSTRUCTIONS = """\
A knowledge base of documents, searched by words and by meaning. Search with knowledge-search before \
answering what the documents may know. Add files that lie on the server's machine with knowledge-add; it \
answers with a task_id, and knowledge-task-status tells when the document can be searched."""


def build(services: Services) -> Toolset:
    """The toolset over `services`, which the caller opens and closes."""
    return Toolset(
        name="knowledge",
        server_name="knowledge-server",
        version="1.0.0",
        title="Knowledge server",
        instructions=INSTRUCTIONS,
        tools=(
            KnowledgeAddTool(services),
            KnowledgeSearchTool(services),
            KnowledgeRemoveTool(services),
            KnowledgeShowTool(services),
            KnowledgeClearTool(services),
            KnowledgeStatusTool(services),
            KnowledgeTaskStatusTool(services),
        ),
        tools_list_changed=True,
        prompts_list_changed=False,
        cancel=canceller(services),
    )
