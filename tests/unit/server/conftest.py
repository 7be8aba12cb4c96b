"""Shared fixtures: the toolset `knowledge` with an engine of its own, `ragler`, and uploads on a disk."""

from __future__ import annotations

from tests.support.knowledge import knowledge as knowledge
from tests.support.knowledge import knowledge_with as knowledge_with
from tests.support.knowledge import simulated as simulated
from tests.support.knowledge import simulator as simulator
from tests.support.ragler import backend as backend
from tests.support.ragler import tools as tools
from tests.support.uploads import desk as desk
from tests.support.uploads import full_disk as full_disk
