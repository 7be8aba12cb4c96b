"""The faults of RAGler's backend in the words of the toolset `ragler`."""

from __future__ import annotations

from kb_server.tool import EngineWords

ENGINE_WORDS = EngineWords(
    messages={
        "engine_unreachable": (
            "RAGler's backend cannot be reached at {url}: {detail}. Check that it runs and that "
            "RAGLER_API_URL is right; then try again."
        ),
        "engine_timeout": "RAGler's backend took the request and then kept silent. {detail} Try again.",
        "rate_limited": ("RAGler's backend takes no more calls of this kind for now. Try again in {wait}."),
        "engine_busy": "RAGler's backend is busy: {detail} Try again in {wait}.",
        "engine_unauthorized": (
            "RAGler's backend refused the server's RAGLER_API_KEY; whoever runs the server must set it to "
            "one that the backend knows."
        ),
        "engine_failed": "RAGler's backend failed: {detail} Try again; its log says more.",
        "engine_bad_answer": (
            "What answers at RAGLER_API_URL does not behave like RAGler's backend. {detail} Whoever runs the "
            "server must check that setting, and any proxy between the two."
        ),
        "collection_not_found": (
            "There is no collection {collection}. list_collections tells which there are."
        ),
        "forbidden": "RAGler's backend does not let this server do that: {detail}",
        "engine_refused": "RAGler's backend refused the request: {detail}",
    },
    codes={
        "engine_unreachable": "backend_unreachable",
        "engine_timeout": "timeout",
        "engine_busy": "backend_busy",
        "engine_unauthorized": "unauthorized",
        "engine_failed": "backend_failed",
        "engine_bad_answer": "backend_bad_answer",
        "engine_refused": "backend_refused",
        "collection_not_found": "not_found",
    },
    flattened="",
)
