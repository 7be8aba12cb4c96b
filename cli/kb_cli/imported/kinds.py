"""The kinds of import."""

from __future__ import annotations

from typing import Literal, get_args

Kind = Literal["kb", "obsidian", "basic-memory", "mcp-memory-service"]
KINDS: tuple[Kind, ...] = get_args(Kind)

NAMES: dict[Kind, str] = {
    "kb": "an export of kb",
    "obsidian": "an Obsidian vault",
    "basic-memory": "a folder of basic-memory",
    "mcp-memory-service": "an export of mcp-memory-service",
}
