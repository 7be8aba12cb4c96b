"""A call of another toolset's tool gets an error that says where the tool is, if the caller could use it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kb_contracts.access.reach import Access, Right
from kb_server.access.grants import Grant, TokenScopes
from kb_server.hosting.calls import Calls, UnknownToolError
from kb_server.observability.metrics import Metrics
from kb_server.services import Services
from kb_server.settings import ServerSettings
from kb_server.tool import Call
from kb_server.toolsets import TOOLSETS, build_toolset, where_to_find

UNUSED = Services(ServerSettings(home=Path("unused")))


@pytest.mark.parametrize("toolset", TOOLSETS)
def test_every_tool_is_found_in_its_toolset(toolset: str) -> None:
    for tool in build_toolset(toolset, UNUSED).tools:
        assert f"{tool.name} belongs to the toolset {toolset}," in where_to_find(tool.name, Grant())
    assert where_to_find("kb_nothing", Grant()) == ""


SCOPES = TokenScopes((), {"delete": "kb:delete"})


@pytest.mark.parametrize(
    ("grant", "is_named"),
    [
        (Grant(), True),
        (Grant(toolsets=frozenset({"kb"})), False),
        (Grant(Access(rights=frozenset({"read"}))), False),
        (Grant(Access(rights=frozenset({"read"})), scopes=SCOPES), True),
    ],
)
async def test_an_unknown_kb_delete_names_its_toolset_to_a_caller_that_may_have_it(
    grant: Grant, is_named: bool
) -> None:
    calls = Calls(build_toolset("kb", UNUSED), Metrics())
    with pytest.raises(UnknownToolError) as refused:
        await calls.outcome("kb_delete", {"document_id": 1}, Call(grant=grant))
    message = refused.value.error.message
    assert "kb_search" in message
    assert message.endswith("with KB_TOOLSETS=kb,kb-extra it is served here, too.") == is_named
    assert ("kb-extra" in message) == is_named


@pytest.mark.parametrize(
    ("right", "words"),
    [("read", "The tools are kb_history, kb_tags."), ("administer", "This key may use no tool here.")],
)
async def test_an_unknown_tool_names_only_tools_that_the_key_may_use(right: Right, words: str) -> None:
    calls = Calls(build_toolset("kb-extra", UNUSED), Metrics())
    with pytest.raises(UnknownToolError) as refused:
        await calls.outcome("kb_nothing", {}, Call(grant=Grant(Access(rights=frozenset({right})))))
    assert refused.value.error.message.endswith(words)
