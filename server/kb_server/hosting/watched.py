"""The resources of a toolset, as subscriptions look at them."""

from __future__ import annotations

from collections.abc import Hashable

from kb_server.hosting.offers import answered
from kb_server.offers import Resources
from kb_server.tool import ToolError
from mcp_aiohttp.protocol.subscriptions import Context


class HostedResources:
    """`WatchedResources` of a toolset: one look for all, and a first one on behalf of who subscribes."""

    def __init__(self, resources: Resources, toolset: str) -> None:
        """`toolset` is the one whose resources they are."""
        self._resources = resources
        self._toolset = toolset

    async def state(self) -> Hashable:
        return await self._resources.state()

    async def version(self, uri: str) -> Hashable | None:
        return await self._resources.version(uri)

    async def required(self, context: Context, uri: str) -> None:
        async def look() -> None:
            if await self._resources.version(uri) is None:
                raise ToolError("resource_not_found", f"There is no resource {uri[:200]}.", uri=uri[:2_000])

        await answered(context, look, self._toolset)
