"""The engine API: one handler for each operation of the contract."""

from kb_engine.api.engine import Engine
from kb_engine.api.table import handlers

__all__ = ["Engine", "handlers"]
