"""A tool that stands on the services."""

from __future__ import annotations

from functools import cached_property
from typing import Any, TypeVar

import msgspec

from kb_server.engine_client.errors import EngineFault
from kb_server.engine_client.port import Engine
from kb_server.engine_faults import tool_error
from kb_server.services import Services
from kb_server.tool import Tool, ToolError

A = TypeVar("A", bound=msgspec.Struct)
R = TypeVar("R", bound=msgspec.Struct)


class ServiceTool(Tool[A, R]):
    """Holds the services; what it needs of them is opened by the first call."""

    def __init__(self, services: Services) -> None:
        self.services = services

    @cached_property
    def engine(self) -> Engine:
        """The engine."""
        return self.services.engine

    def error_of(self, fault: EngineFault, **subject: Any) -> ToolError:
        """For a tool that goes on after a fault: what hosting would have made of it."""
        return tool_error(fault, self.engine_words, **subject)
