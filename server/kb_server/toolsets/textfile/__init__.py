"""The toolset `textfile`: one plain text file, read at the start, told as it is.

It needs neither the engine nor an HTTP client, and imports none: `kb stdio` starts it for every
conversation.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
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
"""The description of a text that nobody has described."""


class _HasSettings(Protocol):
    """All that this toolset needs of the server's services."""

    @property
    def settings(self) -> ServerSettings: ...


def build(services: _HasSettings) -> Toolset:
    """The toolset over the file that the settings name."""
    settings = services.settings
    # Every server has this toolset at a path of its own; that it has no text is news to who chose it.
    absence = logging.INFO if "textfile" in settings.toolsets else logging.DEBUG
    return build_over(TextFile(settings.text_file), settings.text_description or PLACEHOLDER, absence=absence)


def build_over(source: DataSource, about: str, *, absence: int = logging.INFO) -> Toolset:
    """The toolset over any source; `about` says what its text is about.

    `absence` is the level at which the log tells that no source is configured.
    """
    held = HeldText()

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        if not held.is_read:
            held.keep(await asyncio.to_thread(_read, source, absence))
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


def _read(source: DataSource, absence: int) -> Text | SourceError:
    """What the source gives, with one line in the log that says whether the start went well."""
    fields = {"source": source.name}
    try:
        text = source.read()
    except NotConfigured as state:
        log.log(absence, "No knowledge base text: none is configured", extra={"fields": fields})
        return state
    except SourceError as error:
        log.error("Reading the knowledge base text failed: %s", error, extra={"fields": fields})
        return error
    except Exception:  # the boundary: no source, whatever it raises, may keep the server from starting
        log.exception("Reading the knowledge base text failed", extra={"fields": fields})
        return SourceError("The text could not be read; the server's log says why.")
    figures = {"bytes": text.size, "characters": len(text.content)}
    log.info("Read the knowledge base text", extra={"fields": {**fields, **figures}})
    return text
