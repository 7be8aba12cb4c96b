"""The toolsets, by name. A new toolset is one module in this folder and one line in this table.

A tool is one class in a module of its toolset: to define it there is to serve it. A toolset of several
modules names them in `MODULES`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from kb_config.settings import SettingsError
from kb_server.engine_faults import tool_error
from kb_server.tool import A, Call, R, Tool, ToolError, Toolset

if TYPE_CHECKING:
    from kb_server.access.grants import Grant
    from kb_server.engine_client.errors import EngineFault
    from kb_server.engine_client.port import Engine
    from kb_server.services import Services
    from kb_server.settings import ServerSettings

S = TypeVar("S", bound=msgspec.Struct)

NOT_CONFIRMED = "not_confirmed"
"""The code of a refusal by the person at the client."""
_QUOTED = 80

TOOLSETS = {
    "kb": "kb_server.toolsets.kb",
    "kb-extra": "kb_server.toolsets.kb_extra",
    "chatgpt": "kb_server.toolsets.chatgpt",
    "knowledge": "kb_server.toolsets.knowledge",
    "ragler": "kb_server.toolsets.ragler",
    "textfile": "kb_server.toolsets.textfile",
}
"""Each module has `build(services) -> Toolset`, over services that the caller opens and closes.

It is imported when it is served, not before.
"""

EXTRA, EXTRA_TOKENS = "kb-extra", 1_800
"""The toolset that agents get only on request, and the approximate number of context tokens of its tools."""
EXTRA_USE = f"To delete, move and restore documents too (some {EXTRA_TOKENS:,} tokens of context)"


def offered(settings: ServerSettings, at_root: Sequence[str]) -> list[str]:
    """Return the toolsets with a path of their own: `textfile` only with a file, or if `/mcp` serves it."""
    return [name for name in TOOLSETS if name != "textfile" or settings.text_file or name in at_root]


def build_toolset(name: str, services: Services) -> Toolset:
    """Build the toolset `name`. Raises KeyError: there is no such toolset."""
    module = import_module(TOOLSETS[name])
    toolset: Toolset = module.build(services)
    return toolset


def where_to_find(tool: str, grant: Grant) -> str:
    """Return a message for an agent that names the toolset of a tool; empty if there is no such tool, or the
    grant does not include it.
    """
    for name, module in TOOLSETS.items():
        found = next((each for each in tools_of(module) if each.name == tool), None)
        if found is not None and grant.may_have(found.needed_right(), name):
            return (
                f"{tool} belongs to the toolset {name}, served at /mcp/{name}; with "
                f"KB_TOOLSETS=kb,{name} it is served here, too."
            )
    return ""


def checked_names(names: Sequence[str]) -> list[str]:
    """Return the named toolsets, each once.
    Raises SettingsError: the list is empty, or there is no such toolset.
    """
    for name in names:
        if name not in TOOLSETS:
            raise SettingsError(f"there is no toolset {name!r}; there are {', '.join(TOOLSETS)}")
    if not names:
        raise SettingsError(f"name a toolset; there are {', '.join(TOOLSETS)}")
    return list(dict.fromkeys(names))


def view(kind: type[S], source: msgspec.Struct, **members: Any) -> S:
    """Return the members of `source` that a view has, with `members` in their place.
    Raises TypeError: the view has no such member, or lacks a required one.
    """
    given = msgspec.structs.asdict(source)
    shared = {name: given[name] for name in kind.__struct_fields__ if name in given}
    return kind(**shared | members)


def quoted(title: str) -> str:
    """Return a title for a question, on one line and short, because titles are untrusted input."""
    line = " ".join("".join(sign if sign.isprintable() else " " for sign in title).split())
    return f"“{line if len(line) <= _QUOTED else line[:_QUOTED] + '…'}”"


class ServiceTool(Tool[A, R]):
    """A tool over the services, which its first call opens."""

    def __init__(self, services: Services) -> None:
        self.services = services

    @cached_property
    def engine(self) -> Engine:
        return self.services.engine

    def can_ask(self, call: Call) -> bool:
        """True if the person at the client is asked before a removal."""
        return call.ask is not None and self.services.settings.ask_before_removal

    async def confirmed(self, question: str, call: Call) -> None:
        """Ask the person at the client to approve `question`, if the client can ask.

        Call it before any change: over 2026-07-28 the call ends here and is repeated.
        Raises ToolError: `not_confirmed`, the person did not approve.
        """
        if call.ask is None or not self.can_ask(call):
            return
        answer = await call.ask(question)
        if answer == "accept":
            return
        words = "The user declined the removal: nothing was removed. Do not try again."
        if answer == "none":
            words = "The client returned no answer of the user: nothing was removed."
        raise ToolError(NOT_CONFIRMED, words, answer=answer)

    def error_of(self, fault: EngineFault, **subject: Any) -> ToolError:
        """Return the error that hosting would report, for a tool that goes on after a fault."""
        return tool_error(fault, self.engine_words, **subject)


def tools_of(toolset: str) -> Iterator[type[Any]]:
    """Return the tool classes that the module of a toolset defines, or its `MODULES` define, in order."""
    modules = getattr(import_module(toolset), "MODULES", ())
    for name in [f"{toolset}.{module}" for module in modules] or [toolset]:
        for value in vars(import_module(name)).values():
            is_ours = isinstance(value, type) and issubclass(value, Tool) and value.__module__ == name
            if is_ours and hasattr(value, "name"):
                yield value
