"""The toolset `textfile`: one plain text file, read at the start, told as it is.

It needs neither the engine nor an HTTP client, and imports none: `kb stdio` starts it for every
conversation.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

from kb_server.settings import ServerSettings
from kb_server.tool import Toolset
from kb_server.toolsets.textfile.source import DataSource, HeldText, NotConfigured, SourceError, Text
from kb_server.toolsets.textfile.text_file import TextFile
from kb_server.toolsets.textfile.tools import GetKbContentTool, GetKbInfoTool

__all__ = [
    "PLACEHOLDER",
    "DataSource",
    "GetKbContentTool",
    "GetKbInfoTool",
    "HeldText",
    "SourceError",
    "Text",
    "TextFile",
    "build",
    "build_over",
]

log = logging.getLogger(__name__)

PLACEHOLDER = "Azure Managed Grafana (a placeholder: set KB_TEXT_DESCRIPTION to say what your text is about)"
"""The description where there is neither a text nor a description."""


class _HasSettings(Protocol):
    """All that this toolset needs of the server's services."""

    @property
    def settings(self) -> ServerSettings: ...


def build(services: _HasSettings) -> Toolset:
    """The toolset over the file that the settings name."""
    settings = services.settings
    return build_over(TextFile(settings.text_file), _description(settings))


def _description(settings: ServerSettings) -> str:
    """What the text is about: as described, else the name of its file, which is all that is known of it."""
    if settings.text_description or not settings.text_file:
        return settings.text_description or PLACEHOLDER
    return f"the text file {Path(settings.text_file).name} (set KB_TEXT_DESCRIPTION to say what it is about)"


def build_over(source: DataSource, about: str) -> Toolset:
    """The toolset over any source; `about` says what its text is about."""
    held = HeldText()

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        if not held.is_read:
            held.keep(await asyncio.to_thread(_read, source))
        yield

    return Toolset(
        name="textfile",
        server_name="kb-textfile",
        version="3.0.0",
        title="A text as a knowledge base",
        instructions=(
            f"One text, about: {about}. get_kb_info tells its size and age, get_kb_content gives all of it."
        ),
        tools=(GetKbInfoTool(held, about), GetKbContentTool(held)),
        lifespan=lifespan,
    )


def _read(source: DataSource) -> Text | SourceError:
    """What the source gives, with one line in the log that says whether the start went well."""
    fields = {"source": source.name}
    try:
        text = source.read()
    except NotConfigured as state:
        log.info("No knowledge base text: none is configured", extra=fields)
        return state
    except SourceError as error:
        log.error("Reading the knowledge base text failed: %s", error, extra=fields)
        return error
    except Exception:  # the boundary: no source, whatever it raises, may keep the server from starting
        log.exception("Reading the knowledge base text failed", extra=fields)
        return SourceError("The text could not be read; the server's log says why.")
    figures = {"bytes": text.size, "characters": len(text.content)}
    log.info("Read the knowledge base text", extra={**fields, **figures})
    return text
