"""A tool that stands on the services."""

from __future__ import annotations

from functools import cached_property
from typing import TypeVar

import msgspec

from kb_server.engine_client.port import Engine
from kb_server.services import Services
from kb_server.tool import Tool

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
