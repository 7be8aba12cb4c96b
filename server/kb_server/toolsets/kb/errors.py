"""The engine's faults in the words of the toolsets `kb` and `kb-extra`, which name the tool to call next."""

from __future__ import annotations

from kb_server.tool import EngineWords

ENGINE_WORDS = EngineWords(
    {
        "engine_timeout": (
            "The engine took the request and then kept silent. {detail} Try again; for a note or a file, "
            "look at kb_jobs first."
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
)
