"""Which toolset answers where: `/mcp` the chosen ones, `/mcp/<name>` each one of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass, replace

from kb_server.tool import Toolset

ROOT = "/mcp"


@dataclass(frozen=True, slots=True)
class Mount:
    """A path and the toolset served there."""

    path: str
    toolset: Toolset


def mount(toolsets: Sequence[Toolset], at_root: Sequence[str]) -> list[Mount]:
    """`/mcp` with the toolsets named in `at_root`, then `/mcp/<name>` for each of `toolsets`.

    Raises:
        KeyError: `at_root` names none of `toolsets`.
        ValueError: `at_root` is empty, or two toolsets there have a tool of the same name.
    """
    by_name = {toolset.name: toolset for toolset in toolsets}
    chosen = combine([by_name[name] for name in at_root])
    if len(at_root) > 1:
        # Its parts are entered at their own paths; entering them here too would build them twice.
        chosen = replace(chosen, lifespan=nullcontext)
    own = [Mount(f"{ROOT}/{toolset.name}", toolset) for toolset in toolsets]
    return [Mount(ROOT, chosen), *own]


def combine(toolsets: Sequence[Toolset]) -> Toolset:
    """One toolset with the tools of all; a single one is returned as it is.

    The first gives the name and the version, the first that can cancel tasks cancels them, each gives its
    instructions; the lifespan enters all in order.

    Raises:
        ValueError: `toolsets` is empty, or two have a tool of the same name.
    """
    if not toolsets:
        raise ValueError("no toolset is chosen")
    if len(toolsets) == 1:
        return toolsets[0]
    _check_names(toolsets)
    prompts = [
        toolset.prompts_list_changed for toolset in toolsets if toolset.prompts_list_changed is not None
    ]
    return replace(
        toolsets[0],
        instructions="\n\n".join(toolset.instructions for toolset in toolsets if toolset.instructions),
        tools=tuple(tool for toolset in toolsets for tool in toolset.tools),
        tools_list_changed=any(toolset.tools_list_changed for toolset in toolsets),
        prompts_list_changed=any(prompts) if prompts else None,
        cancel=next((toolset.cancel for toolset in toolsets if toolset.cancel is not None), None),
        lifespan=_lifespan_of(toolsets),
    )


def _lifespan_of(toolsets: Sequence[Toolset]) -> Callable[[], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for toolset in toolsets:
                await stack.enter_async_context(toolset.lifespan())
            yield

    return lifespan


def _check_names(toolsets: Sequence[Toolset]) -> None:
    owners: dict[str, str] = {}
    for toolset in toolsets:
        for tool in toolset.tools:
            if tool.name in owners:
                raise ValueError(
                    f"the toolsets {owners[tool.name]} and {toolset.name} both have a tool {tool.name}"
                )
            owners[tool.name] = toolset.name
