"""One round through all tools of the toolsets that need an engine, as any client can take it."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from tests.support.knowledge import SEVEN

NINE = (
    "kb_search",
    "kb_addnote",
    "kb_upload_start",
    "kb_upload_chunk",
    "kb_upload_finish",
    "kb_update_note",
    "kb_get",
    "kb_status",
    "kb_jobs",
)
TOOLS = {"kb": NINE, "knowledge": SEVEN}
"""By toolset, all that a round calls."""

CallTool = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]
"""Calls a tool through a client, and gives the members of its result as the client's caller has them."""

CONTENT = b"# Granite\n\nGranite is an igneous rock.\n"


async def round_of_kb(call: CallTool) -> None:
    """A note and a file are added, found, read, changed and followed."""
    added = await call("kb_addnote", {"text": "Bees keep warm by shivering", "wait_seconds": 30})
    assert (added["status"], added["error"], added["collection"]) == ("completed", None, "documents")
    note = added["document_id"]
    found = await call("kb_search", {"query": "how do bees keep warm"})
    assert found["results"][0]["document_id"] == note
    assert (await call("kb_get", {"document_id": note}))["chunks"][0]["text"] == "Bees keep warm by shivering"
    changed = await call("kb_update_note", {"document_id": note, "text": "Bees keep warm in a ball"})
    assert (changed["id"], changed["source_path"]) == (note, None)
    begun = await call(
        "kb_upload_start", {"filename": "g.md", "total_size": len(CONTENT), "source_path": "g"}
    )
    chunk = {"upload_id": begun["upload_id"], "chunk_index": 0, "data": base64.b64encode(CONTENT).decode()}
    assert (await call("kb_upload_chunk", chunk))["complete"] is True
    finished = await call("kb_upload_finish", {"upload_id": begun["upload_id"], "wait_seconds": 30})
    assert (finished["status"], finished["error"]) == ("completed", None)
    assert (await call("kb_get", {"source_path": "g"}))["total"] == 1
    assert (await call("kb_jobs", {}))["jobs"][0]["id"] == finished["job_id"]
    assert (await call("kb_jobs", {"job_id": added["job_id"]}))["jobs"][0]["error"] is None
    assert (await call("kb_status", {}))["documents"]["total"] == 2


async def round_of_knowledge(call: CallTool, root: Path) -> None:
    """A file is added, found, listed and removed, and the base is cleared."""
    path = root / "granite.html"
    path.write_text("<h1>Granite</h1><p>Granite is an igneous rock.</p>")
    task = (await call("knowledge-add", {"file_path": str(path)}))["task_id"]
    whole = await call("knowledge-add", {"file_path": str(path), "async": False})
    assert (await call("knowledge-task-status", {"task_id": task}))["status"] == "completed"
    assert (await call("knowledge-search", {"query": "granite"}))["results"][0]["metadata"][
        "page_num"
    ] is None
    shown = await call("knowledge-show", {})
    assert shown["documents"][0]["filename"] == path.name
    assert (await call("knowledge-status", {}))["knowledge_base"]["document_count"] == shown["total_count"]
    removal = {"document_id": whole["document_id"], "confirm": True}
    assert (await call("knowledge-remove", removal))["success"] is True
    clearing = {"confirm": True, "confirmation_phrase": "DELETE ALL"}
    assert (await call("knowledge-clear", clearing))["success"] is True
