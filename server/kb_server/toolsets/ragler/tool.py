"""What the three tools have in common: the backend, and how long an answer may be."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from kb_server.engine_client.ragler import Ragler
from kb_server.tool import ToolError
from kb_server.toolsets import ServiceTool
from kb_server.toolsets.ragler.errors import ENGINE_WORDS

A = TypeVar("A", bound=msgspec.Struct)
R = TypeVar("R", bound=msgspec.Struct)

NOT_CONFIGURED = "not_configured"
MAX_CHARS = 200_000
"""Bound on the characters of an answer's JSON; what is left out is told."""
MAX_RESULT_CHARS = 2 * MAX_CHARS


class RaglerTool(ServiceTool[A, R]):
    """A tool that asks RAGler's backend."""

    engine_words = ENGINE_WORDS

    @property
    def backend(self) -> Ragler:
        """The backend.

        Raises:
            ToolError: `not_configured`.
        """
        if not self.services.ragler_is_configured:
            raise ToolError(
                NOT_CONFIGURED,
                "This server does not know RAGler's backend. Whoever runs it must set RAGLER_API_URL to its "
                "base URL, and RAGLER_API_KEY to its key where it wants one, and start it again.",
                missing=["RAGLER_API_URL", "RAGLER_API_KEY"],
            )
        return self.services.ragler
