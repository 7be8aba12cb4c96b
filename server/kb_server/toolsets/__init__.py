"""The toolsets, by name. A new toolset is one module in this folder and one line in this table."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from kb_config.settings import SettingsError
from kb_server.tool import Toolset

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kb_server.services import Services
    from kb_server.settings import ServerSettings

TOOLSETS = {
    "kb": "kb_server.toolsets.kb",
    "kb-extra": "kb_server.toolsets.kb_extra",
    "knowledge": "kb_server.toolsets.knowledge",
    "ragler": "kb_server.toolsets.ragler",
    "textfile": "kb_server.toolsets.textfile",
}
"""Each module has `build(services) -> Toolset`; it is imported when it is served, not before."""


def offered(settings: ServerSettings, at_root: Sequence[str]) -> list[str]:
    """The toolsets with an endpoint of their own: `textfile` only with a file, or where `/mcp` serves it."""
    return [name for name in TOOLSETS if name != "textfile" or settings.text_file or name in at_root]


def build_toolset(name: str, services: Services) -> Toolset:
    """Build the toolset `name`.

    Raises:
        KeyError: there is no such toolset.
    """
    module = import_module(TOOLSETS[name])
    toolset: Toolset = module.build(services)
    return toolset


def checked_names(names: Sequence[str]) -> list[str]:
    """The toolsets named, once each.

    Raises:
        SettingsError: none is named, or there is no such toolset.
    """
    for name in names:
        if name not in TOOLSETS:
            raise SettingsError(f"there is no toolset {name!r}; there are {', '.join(TOOLSETS)}")
    if not names:
        raise SettingsError(f"name a toolset; there are {', '.join(TOOLSETS)}")
    return list(dict.fromkeys(names))
