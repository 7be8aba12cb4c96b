"""The engine's faults in the words of the toolsets `kb` and `kb-extra`, which name the tool to call next."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from kb_server import engine_faults
from kb_server.engine_client.errors import EngineFault
from kb_server.tool import Call, ToolError

_MESSAGES: Mapping[str, str] = {
    **engine_faults.MESSAGES,
    "engine_timeout": (
        "The engine took the request and then kept silent. {detail} Try again; for a note or a file, look "
        "at kb_jobs first."
    ),
    "document_not_found": (
        "{document} was not found. Look it up with kb_search, or with kb_get by its source_path."
    ),
    "not_a_note": (
        "{document} is not a note; only notes can be updated in place. Upload the changed file instead, "
        "or add a note beside it."
    ),
    "version_conflict": "{document} has changed in the meantime. Read it again with kb_get, then repeat.",
    "job_not_found": "{job} was not found. kb_jobs without a job_id lists the recent ones.",
    "embedder_unavailable": (
        'The engine cannot load its embedding model: {detail} A search with mode "fts" needs none.'
    ),
}


def tool_error(fault: EngineFault, **subject: Any) -> ToolError:
    """The error that an agent sees; `subject` is `document_id` or `job_id`."""
    return engine_faults.tool_error(fault, _MESSAGES, **subject)


def engine_call(call: Call, **subject: Any) -> AbstractContextManager[None]:
    """Call the engine for `call`; faults come out as `tool_error` has them."""
    return engine_faults.reported(call, partial(tool_error, **subject))
