"""What several files share: the toolset `knowledge` before an engine of its own, uploads on a disk."""

from __future__ import annotations

from tests.knowledge import knowledge as knowledge
from tests.knowledge import knowledge_with as knowledge_with
from tests.knowledge import simulated as simulated
from tests.knowledge import simulator as simulator
from tests.unit.server.uploads_desk import desk as desk
from tests.unit.server.uploads_desk import full_disk as full_disk
