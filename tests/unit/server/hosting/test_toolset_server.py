"""Toolsets and their endpoints."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from kb_server.hosting.toolset_server import combine, mount
from kb_server.tool import Annotations, Call, NoArguments, Tool, Toolset


def tool(tool_name: str) -> Tool[NoArguments, NoArguments]:
    class Named(Tool[NoArguments, NoArguments]):
        name = tool_name
        title = description = tool_name
        annotations = Annotations()
        arguments = result = NoArguments

        async def run(self, arguments: NoArguments, call: Call) -> NoArguments:
            return arguments

    return Named()


def toolset(
    name: str,
    *tools: str,
    listing: bool = False,
    prompts: bool | None = None,
    entered: list[str] | None = None,
) -> Toolset:
    return Toolset(
        name=name,
        server_name=f"{name}-server",
        version=f"1.{len(name)}",
        title=name,
        instructions=f"Use {name}.",
        tools=tuple(tool(each) for each in tools),
        tools_list_changed=listing,
        prompts_list_changed=prompts,
        lifespan=_noting(name, entered if entered is not None else []),
    )


def _noting(name: str, entered: list[str]) -> Callable[[], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        entered.append(f"+{name}")
        yield
        entered.append(f"-{name}")

    return lifespan


def test_one_toolset_shown_is_served_as_itself() -> None:
    kb, other = toolset("kb", "a"), toolset("other", "b")
    root, *own = mount([kb, other], ["kb"])
    assert root.path == "/mcp"
    assert root.toolset is kb
    assert [(endpoint.path, endpoint.toolset) for endpoint in own] == [("/mcp/kb", kb), ("/mcp/other", other)]


def test_several_shown_are_served_together() -> None:
    shown = combine(
        [toolset("kb", "a", "b"), toolset("extra", "c", listing=True), toolset("third", prompts=False)]
    )
    assert shown.server_name == "kb-server"
    assert [each.name for each in shown.tools] == ["a", "b", "c"]
    assert shown.instructions == "Use kb.\n\nUse extra.\n\nUse third."
    assert shown.tools_list_changed is True
    assert shown.prompts_list_changed is False


def test_no_prompts_anywhere_declare_none() -> None:
    assert combine([toolset("a"), toolset("b")]).prompts_list_changed is None


def test_two_tools_of_one_name_are_refused_with_both_owners() -> None:
    with pytest.raises(ValueError, match="kb and extra both have a tool a"):
        combine([toolset("kb", "a"), toolset("extra", "a")])


def test_mounting_no_toolset_is_refused() -> None:
    with pytest.raises(ValueError, match="no toolset"):
        mount([toolset("kb")], [])
    with pytest.raises(KeyError):
        mount([toolset("kb")], ["other"])


async def test_lifespans_of_toolsets_together_are_entered_in_order_and_left_in_reverse() -> None:
    entered: list[str] = []
    async with combine([toolset("a", entered=entered), toolset("b", entered=entered)]).lifespan():
        assert entered == ["+a", "+b"]
    assert entered == ["+a", "+b", "-b", "-a"]


async def test_a_shown_union_leaves_lifespans_to_the_endpoints_of_its_parts() -> None:
    """Otherwise each part would be built twice."""
    entered: list[str] = []
    root, *_ = mount([toolset("a", entered=entered), toolset("b", entered=entered)], ["a", "b"])
    async with root.toolset.lifespan():
        assert entered == []
