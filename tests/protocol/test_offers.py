"""Resources, prompts and completion of the toolset kb, in both eras."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kb_server.document_marks import META
from kb_server.services import Services
from kb_server.settings import ServerSettings
from kb_server.toolsets import build_toolset
from kb_server.toolsets.kb import resources
from kb_server.toolsets.kb.resources import JOB_TEMPLATE, MOST_CHARS, SOURCE_TEMPLATE, TEMPLATE
from tests.protocol.conftest import Serve, Served
from tests.support.mcp_messages import LATEST_HANDSHAKE, MODERN, PLAIN, initialize, modern, request
from tests.support.simulated_engine import SimulatedEngine

ERAS = (LATEST_HANDSHAKE, MODERN)


@pytest.fixture
async def served(serve: Serve, engine: SimulatedEngine, tmp_path: Path) -> AsyncIterator[Served]:
    settings = ServerSettings(engine_url=engine.url, home=tmp_path)
    async with Services(settings) as services:
        toolsets = [build_toolset(name, services) for name in ("kb", "textfile")]
        yield await serve(*toolsets)


def add_note(engine: SimulatedEngine, text: str, **fields: Any) -> int:
    """Return the number of the new document."""
    tags = fields.pop("tags", ["collection:memory"])
    return engine.add(*tags, text=text, **fields).id


async def answer(
    served: Served, era: str, method: str, params: dict[str, Any] | None = None, path: str = "/mcp/kb"
) -> dict[str, Any]:
    message = request(method, params)
    headers = {**PLAIN, "MCP-Protocol-Version": era}
    sent, with_headers = (modern(message), None) if era == MODERN else (message, headers)
    response = await served.post(sent, with_headers, path)
    found: dict[str, Any] = response.json()
    return found


async def result(served: Served, era: str, method: str, **params: Any) -> dict[str, Any]:
    found = await answer(served, era, method, params)
    assert "result" in found, found
    result: dict[str, Any] = found["result"]
    return result


async def error(served: Served, era: str, method: str, **params: Any) -> tuple[int, str]:
    found = (await answer(served, era, method, params))["error"]
    assert found["message"].endswith("."), found
    return found["code"], found["data"]["error_type"]


async def test_capabilities_are_announced_where_there_is_something(served: Served) -> None:
    announced = (await served.post(initialize(LATEST_HANDSHAKE), path="/mcp/kb")).json()["result"]
    assert announced["capabilities"] == {
        "tools": {"listChanged": False},
        "prompts": {"listChanged": False},
        "resources": {"subscribe": False, "listChanged": False},
        "completions": {},
        "tasks": {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}},
    }
    other = (await served.post(initialize(LATEST_HANDSHAKE), path="/mcp/textfile")).json()["result"]
    assert other["capabilities"].keys() == {"tools"}
    missing = await answer(served, LATEST_HANDSHAKE, "resources/list", path="/mcp/textfile")
    assert missing["error"]["code"] == -32601


@pytest.mark.parametrize("era", ERAS)
async def test_documents_are_listed_newest_first_and_read(
    served: Served, engine: SimulatedEngine, era: str
) -> None:
    first = add_note(engine, "Granite is hard.", title="Stones")
    second = add_note(engine, "Chalk is not.", title="Chalk")
    listed = await result(served, era, "resources/list")
    assert [each["uri"] for each in listed["resources"]] == [
        f"kb://documents/{second}", f"kb://documents/{first}",
    ]  # fmt: skip
    stones = listed["resources"][1]
    assert (stones["title"], stones["mimeType"], stones["size"]) == ("Stones", "text/markdown", 16)
    assert stones["annotations"]["lastModified"]
    assert "nextCursor" not in listed
    read = await result(served, era, "resources/read", uri=stones["uri"])
    assert read["contents"] == [
        {"uri": stones["uri"], "mimeType": "text/markdown", "text": "Granite is hard.", "_meta": META}
    ]
    templates = await result(served, era, "resources/templates/list")
    assert [each["uriTemplate"] for each in templates["resourceTemplates"]] == [
        TEMPLATE,
        SOURCE_TEMPLATE,
        JOB_TEMPLATE,
    ]
    if era == MODERN:
        assert (listed["ttlMs"], read["ttlMs"], templates["ttlMs"]) == (0, 0, 60_000)


@pytest.mark.parametrize("era", ERAS)
async def test_many_documents_come_in_pages(served: Served, engine: SimulatedEngine, era: str) -> None:
    for number in range(101):
        add_note(engine, f"note {number}")
    first = await result(served, era, "resources/list")
    rest = await result(served, era, "resources/list", cursor=first["nextCursor"])
    uris = [each["uri"] for page in (first, rest) for each in page["resources"]]
    assert (len(first["resources"]), len(set(uris))) == (100, 101)
    assert "nextCursor" not in rest
    assert await error(served, era, "resources/list", cursor="after-x") == (-32602, "invalid_parameter")


async def test_a_range_is_what_the_document_has_there(served: Served, engine: SimulatedEngine) -> None:
    words = "\n\n".join(f"Paragraph {number} of the quarry. " * 20 for number in range(40))
    document = add_note(engine, words)
    uri = f"kb://documents/{document}"

    async def text(query: str = "") -> str:
        (content,) = (await result(served, MODERN, "resources/read", uri=uri + query))["contents"]
        return str(content["text"])

    plain = "".join(words.split())
    assert "".join((await text()).split()) == plain
    cut = 4_321
    assert "".join((await text(f"?to={cut}") + await text(f"?from={cut}")).split()) == plain
    assert words[100:160] in await text("?from=100&to=160")
    assert await text("?from=900000") == ""


async def test_a_resource_longer_than_a_response_names_the_uri_of_its_next_part(
    served: Served, engine: SimulatedEngine
) -> None:
    words = "\n\n".join(f"Paragraph {number} lies here." for number in range(12_000))
    document = add_note(engine, words)
    uri: str | None = f"kb://documents/{document}"
    read = ""
    for _ in range(10):
        (content,) = (await result(served, MODERN, "resources/read", uri=uri))["contents"]
        assert len(content["text"]) <= MOST_CHARS
        read += content["text"]
        uri = content.get("_meta", {}).get("kb/following")
        if uri is None:
            break
    assert "".join(read.split()) == "".join(words.split())


async def test_an_answer_that_ends_with_a_passage_names_what_follows(
    served: Served, engine: SimulatedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "\n\n".join(f"Paragraph {number} of the quarry. " * 20 for number in range(6))
    document = add_note(engine, words)
    ends = [chunk.end for chunk in engine.state.documents.by_id[document].chunks]
    monkeypatch.setattr(resources, "_CHUNKS", 2)
    monkeypatch.setattr(resources, "MOST_CHARS", ends[1])
    uri = f"kb://documents/{document}"
    (content,) = (await result(served, MODERN, "resources/read", uri=uri))["contents"]
    assert content["_meta"] == {**META, "kb/following": f"{uri}?from={ends[1]}"}
    (content,) = (await result(served, MODERN, "resources/read", uri=f"{uri}?from={ends[4]}"))["contents"]
    assert content["_meta"] == META


@pytest.mark.parametrize(
    ("doc_type", "mime_type"), [("code", "text/markdown"), ("data", "text/plain"), ("text", "text/plain")]
)
async def test_a_text_is_of_the_type_that_its_reader_gave_it(
    served: Served, engine: SimulatedEngine, doc_type: Any, mime_type: str
) -> None:
    """Source code has headings and fences after conversion."""
    document = add_note(engine, "x = 1", doc_type=doc_type)
    uri = f"kb://documents/{document}"
    (content,) = (await result(served, MODERN, "resources/read", uri=uri))["contents"]
    assert content["mimeType"] == mime_type


UNKNOWN_URIS = (
    "kb://documents/999",
    "kb://documents/../../etc/passwd",
    "kb://documents/",
    "kb://documents/1/2",
    "kb://documents/1?from=-1",
    "kb://documents/1?from=5&to=1",
    "kb://documents/1?from=1&from=2",
    "kb://documents/1?from=x",
    "kb://documents/1?other=1",
    "kb://documents/1#a",
    "kb://elsewhere/1",
    "kb://sources/memory/nothing",
    "kb://sources/memory/",
    "kb://sources/memory",
    "kb://sources//a",
    "kb://sources/",
    "kb://sources/No%20name/a",
    "kb://sources/memory/%ff",
    "kb://sources/memory/" + "a" * 5_000,
    "file:///etc/passwd",
    "http://[",
    "",
    "kb://documents/" + "9" * 25,
    "kb://documents/" + "9" * 5_000,
    "kb://jobs/",
    "kb://jobs/1",
    "kb://jobs/00000000-0000-0000-0000-000000000000",
    "kb://documents/0",
    "kb://documents/abc",
    "kb://documents/ABCDEF00-0000-0000-0000-000000000000",
    "kb://documents/00000000-0000-0000-0000-000000000000",
    "kb://documents/1?from=99999999999999999999",
)


@pytest.mark.parametrize("era", ERAS)
async def test_an_unknown_or_malformed_uri_is_not_found(
    served: Served, engine: SimulatedEngine, era: str, subtests: pytest.Subtests
) -> None:
    add_note(engine, "granite")
    for uri in UNKNOWN_URIS:
        with subtests.test(uri=uri[:60]):
            assert await error(served, era, "resources/read", uri=uri) == (-32602, "resource_not_found")


@pytest.mark.parametrize("era", ERAS)
async def test_prompts_are_listed_and_filled_in(served: Served, era: str) -> None:
    prompts = (await result(served, era, "prompts/list"))["prompts"]
    assert [each["name"] for each in prompts] == ["research", "remember", "tidy_memory"]
    tools = {each["name"] for each in (await result(served, era, "tools/list"))["tools"]}
    for prompt in prompts:
        arguments = {each["name"]: f"given {each['name']}" for each in prompt["arguments"]}
        got = await result(served, era, "prompts/get", name=prompt["name"], arguments=arguments)
        (message,) = got["messages"]
        text = message["content"]["text"]
        assert (message["role"], message["content"]["type"]) == ("user", "text")
        assert all(value in text for value in arguments.values())
        assert {word.strip(".,`:") for word in text.split() if word.startswith("kb_")} <= tools
        needed = {each["name"]: "x" for each in prompt["arguments"] if each["required"]}
        assert (await result(served, era, "prompts/get", name=prompt["name"], arguments=needed))["messages"]


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(
    ("params", "kind"),
    [
        ({"name": "nothing"}, "unknown_prompt"),
        ({"name": "research"}, "missing_required_parameter"),
        ({"name": "research", "arguments": {"question": " "}}, "missing_required_parameter"),
        ({"name": "tidy_memory", "arguments": {"other": "x"}}, "invalid_parameter"),
    ],
)
async def test_a_prompt_that_does_not_fit_is_refused(
    served: Served, era: str, params: dict[str, Any], kind: str
) -> None:
    assert await error(served, era, "prompts/get", **params) == (-32602, kind)


@pytest.mark.parametrize("era", ERAS)
async def test_arguments_are_completed_from_the_base(
    served: Served, engine: SimulatedEngine, era: str
) -> None:
    for name in ("memory", "meetings", "documents"):
        add_note(engine, f"a note in {name}", tags=[f"collection:{name}"])

    async def values(ref: dict[str, str], name: str, value: str) -> list[str]:
        argument = {"name": name, "value": value}
        found = await result(served, era, "completion/complete", ref=ref, argument=argument)
        return list(found["completion"]["values"])

    research = {"type": "ref/prompt", "name": "research"}
    assert await values(research, "collection", "me") == ["meetings", "memory"]
    assert await values(research, "question", "me") == []
    assert await values(research, "collection", "x" * 10_000) == []
    assert await values({"type": "ref/prompt", "name": "nothing"}, "collection", "") == []
    template = {"type": "ref/resource", "uri": TEMPLATE}
    assert await values(template, "id", "") == ["3", "2", "1"]
    assert await values(template, "id", "2") == ["2"]
    assert await values({"type": "ref/resource", "uri": "kb://other/{id}"}, "id", "") == []


@pytest.mark.parametrize("era", ERAS)
async def test_tags_and_paths_are_completed_from_the_base(
    served: Served, engine: SimulatedEngine, era: str
) -> None:
    add_note(engine, "one", tags=["collection:memory", "colour", "feedback"], source_path="notes/bees.md")
    add_note(engine, "two", tags=["collection:meetings", "food"], source_path="notes/wasps.md")
    add_note(engine, "three", tags=["collection:memory", "food"], source_path="https://example.org/a")

    async def values(ref: dict[str, str], name: str, value: str, **given: str) -> list[str]:
        params: dict[str, Any] = {"ref": ref, "argument": {"name": name, "value": value}}
        if given:
            params["context"] = {"arguments": given}
        found = await result(served, era, "completion/complete", **params)
        return list(found["completion"]["values"])

    for prompt in ("research", "tidy_memory"):
        ref = {"type": "ref/prompt", "name": prompt}
        assert await values(ref, "tag", "") == ["colour", "feedback", "food"]
        assert await values(ref, "tag", "co") == ["colour"]  # without the tag of any collection
        assert await values(ref, "tag", "collection:") == []
        assert await values(ref, "tag", "x" * 10_000) == []
    assert await values({"type": "ref/prompt", "name": "remember"}, "tag", "") == []
    template = {"type": "ref/resource", "uri": SOURCE_TEMPLATE}
    assert await values(template, "collection", "me") == ["meetings", "memory"]
    assert sorted(await values(template, "path", "notes/")) == ["notes/bees.md", "notes/wasps.md"]
    assert await values(template, "path", "notes/", collection="memory") == ["notes/bees.md"]
    assert await values(template, "path", "", collection="No name!") == []
    assert await values(template, "path", "x" * 10_000) == []
    assert await values(template, "id", "") == []
    assert await values({"type": "ref/resource", "uri": TEMPLATE}, "path", "") == []


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(
    ("source_path", "written"),
    [
        ("notes/bees.md", "notes%2Fbees.md"),
        ("notes/bees.md", "notes/bees.md"),
        ("https://example.org/a?b=1#c", "https%3A%2F%2Fexample.org%2Fa%3Fb%3D1%23c"),
        ("https://example.org/a?b=1#c", "https://example.org/a?b=1#c"),
        ("über 100%.md", "%C3%BCber%20100%25.md"),
    ],
)
async def test_a_document_is_read_by_its_source(
    served: Served, engine: SimulatedEngine, era: str, source_path: str, written: str
) -> None:
    add_note(engine, "Here it is.", source_path=source_path)
    add_note(engine, "Elsewhere.", source_path=source_path, tags=["collection:meetings"])
    uri = f"kb://sources/memory/{written}"
    (content,) = (await result(served, era, "resources/read", uri=uri))["contents"]
    assert (content["uri"], content["text"]) == (uri, "Here it is.")


async def test_a_long_source_goes_on_as_a_document(
    served: Served, engine: SimulatedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resources, "MOST_CHARS", 10)
    number = add_note(engine, "Paragraph of the quarry.", source_path="a")
    (content,) = (await result(served, MODERN, "resources/read", uri="kb://sources/memory/a"))["contents"]
    assert content["_meta"] == {**META, "kb/following": f"kb://documents/{number}?from=10"}


@pytest.mark.parametrize("era", ERAS)
async def test_a_completion_says_whether_there_is_more(
    served: Served, engine: SimulatedEngine, era: str
) -> None:
    async def completed(ref: dict[str, str], name: str, value: str) -> tuple[int, bool]:
        argument = {"name": name, "value": value}
        found = (await result(served, era, "completion/complete", ref=ref, argument=argument))["completion"]
        return len(found["values"]), found["hasMore"]

    research = {"type": "ref/prompt", "name": "research"}
    template = {"type": "ref/resource", "uri": TEMPLATE}
    for number in range(100):
        add_note(engine, f"note {number}", tags=[f"collection:c{number}"])
    assert await completed(research, "collection", "c") == (100, False)
    assert await completed(template, "id", "") == (100, False)
    add_note(engine, "one more", tags=["collection:c100"])
    assert await completed(research, "collection", "c") == (100, True)
    assert await completed(template, "id", "") == (100, True)
    assert await completed(template, "id", "10") == (3, False)


@pytest.mark.parametrize("era", ERAS)
async def test_an_engine_out_of_reach_is_said_in_words(serve: Serve, tmp_path: Path, era: str) -> None:
    settings = ServerSettings(engine_url="http://127.0.0.1:9", home=tmp_path)
    async with Services(settings) as services:
        served = await serve(build_toolset("kb", services))
        assert await error(served, era, "resources/list") == (-32000, "engine_unreachable")
        assert len((await result(served, era, "prompts/list"))["prompts"]) == 3
