"""`kb_history` and `kb_restore`: an agent sees replaced and deleted versions, and restores them."""

from __future__ import annotations

from tests.support.server_fixtures import ToolCaller
from tests.support.simulated_engine import SimulatedEngine


async def test_a_replaced_text_is_shown_and_restored(engine: SimulatedEngine, tools: ToolCaller) -> None:
    engine.add("collection:memory", "work", text="concise\nin English")
    assert (await tools.ok("kb_history", document_id=1))["versions"] == []
    await tools.ok("kb_update_note", document_id=1, text="detailed\nin English")
    (past,) = (await tools.ok("kb_history", document_id=1))["versions"]
    assert (past["version"], past["deleted"]) == (1, False)
    assert (past["collection"], past["tags"]) == ("memory", ["work"])
    shown = await tools.ok("kb_history", document_id=1, version=1)
    assert shown["text"] == "concise\nin English"
    assert shown["difference"].splitlines()[3:] == ["-concise", "+detailed", " in English"]
    restored = await tools.ok("kb_restore", document_id=1)
    assert (restored["version"], restored["collection"]) == (3, "memory")
    assert engine.state.documents.by_id[1].text == "concise\nin English"
    assert [each["version"] for each in (await tools.ok("kb_history", document_id=1))["versions"]] == [2, 1]


async def test_a_long_text_comes_in_parts(engine: SimulatedEngine, tools: ToolCaller) -> None:
    """An incomplete text is not compared."""
    text = "granite quarry " * 10
    engine.add(text=text)
    await tools.ok("kb_update_note", document_id=1, text="basalt")
    part = await tools.ok("kb_history", document_id=1, version=1, max_chars=100)
    assert (part["text"], "difference" in part, part["hint"]) == (
        text[:100],
        False,
        "text_offset=100 goes on.",
    )
    rest = await tools.ok("kb_history", document_id=1, version=1, text_offset=100)
    assert (rest["text"], rest["hint"]) == (text[100:], "")


async def test_a_deleted_document_is_brought_back(engine: SimulatedEngine, tools: ToolCaller) -> None:
    for text in ("granite", "basalt"):
        document = engine.add("collection:memory", text=text)
        await tools.ok("kb_delete", document_id=document.id)
    page = await tools.ok("kb_history", limit=1)
    assert ([each["document_id"] for each in page["versions"]], page["total"], page["hint"]) == (
        [2],
        2,
        "1 more: offset=1.",
    )
    assert "difference" not in await tools.ok("kb_history", document_id=1, version=1)
    assert (await tools.ok("kb_restore", document_id=1))["id"] == 1
    assert (await tools.ok("kb_get", document_id=1))["collection"] == "memory"
    assert (await tools.ok("kb_history"))["total"] == 1


async def test_a_purged_document_has_no_versions(engine: SimulatedEngine, tools: ToolCaller) -> None:
    engine.add(text="secret")
    await tools.ok("kb_delete", document_id=1, purge=True)
    assert (await tools.ok("kb_history"))["versions"] == []
    assert (await tools.refused("kb_restore", document_id=1))["error"] == "document_not_found"


async def test_a_missing_version_is_refused_with_the_kept_versions(
    engine: SimulatedEngine, tools: ToolCaller
) -> None:
    engine.add(text="granite")
    nothing = await tools.refused("kb_restore", document_id=1)
    assert (nothing["error"], nothing["document_id"]) == ("version_not_found", 1)
    await tools.ok("kb_update_note", document_id=1, text="basalt")
    other = await tools.refused("kb_restore", document_id=1, version=9)
    assert (other["error"], other["parameter"]) == ("version_not_found", "version")
    assert "the kept ones are: 1." in other["message"]
    stale = await tools.refused("kb_restore", document_id=1, version=1, expected_version=1)
    assert (stale["error"], stale["current_version"]) == ("version_conflict", 2)
    alone = await tools.refused("kb_history", version=1)
    assert (alone["error"], alone["parameter"]) == ("invalid_parameter", "version")
