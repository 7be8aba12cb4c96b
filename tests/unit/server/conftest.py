"""The toolset `knowledge` for tests of its tools, each in front of an empty engine of its own."""

from __future__ import annotations

from tests.knowledge import knowledge as knowledge
from tests.knowledge import knowledge_with as knowledge_with
from tests.knowledge import simulated as simulated
from tests.knowledge import simulator as simulator
