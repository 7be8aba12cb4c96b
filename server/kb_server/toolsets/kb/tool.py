"""What the nine tools of the toolset `kb` have in common."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from kb_server.toolsets.kb.errors import ENGINE_WORDS
from kb_server.toolsets.service_tool import ServiceTool

A = TypeVar("A", bound=msgspec.Struct)
R = TypeVar("R", bound=msgspec.Struct)


class KbTool(ServiceTool[A, R]):
    """Stands in the list that most agents read first, and that stays under 16 KB."""

    lean_result = True
    engine_words = ENGINE_WORDS
