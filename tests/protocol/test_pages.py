"""The pages, as a browser without scripts uses them: HTTP, a cookie and forms."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from html import unescape
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

import httpx
import pytest
from markupsafe import escape as markup

from kb_contracts.access.key_file import KeyFile, rights_of
from kb_contracts.access.keys import KeyRing, Quotas
from kb_contracts.api import models as m
from kb_contracts.api import operations as ops
from kb_server.hosting.http import build_app
from kb_server.hosting.toolset_server import mount
from kb_server.oauth.oauth_settings import OAuthSettings
from kb_server.pages import document_pages, forms, visit
from kb_server.pages.pages_settings import PagesSettings
from kb_server.pages.routes import Pages
from kb_server.pages.sessions import COOKIE, Sessions
from kb_server.parts import site_part
from kb_server.services import Services
from kb_server.settings import ServerSettings
from kb_server.toolsets import build_toolset
from kb_simulator import Fault, Match, When
from kb_simulator.harness.faults import Status
from kb_verify.files import pdf
from mcp_aiohttp.authentication import WrongTokens
from tests.protocol.conftest import Served, serving
from tests.support.mcp_messages import PLAIN
from tests.support.patience import ANSWER_SECONDS
from tests.support.simulated_engine import InterruptedEngine, SimulatedEngine, simulated_engine
from tests.support.uploads import sha256

HTML = {"Accept": "text/html,*/*;q=0.8"}
EVIL = "<script>alert(1)</script>'\"&{{ 7*7 }}"
EVERY = ["/", "/?q=granite", "/documents", "/documents/1", "/documents/1/note", "/documents/1/remove", "/add",
         "/collections", "/jobs", "/state", "/documents/selected?id=1&action=remove",
         "/documents/999"]  # fmt: skip


@dataclass
class Site:
    """A server with its pages in front of a simulated engine, and a browser's cookies."""

    served: Served
    engine: SimulatedEngine
    client: InterruptedEngine

    @property
    def http(self) -> httpx.AsyncClient:
        return self.served.http

    async def get(self, path: str, status: int = 200) -> str:
        response = await self.http.get(path, headers=HTML)
        assert response.status_code == status, response.text
        assert response.headers["Content-Type"] == "text/html; charset=utf-8"
        assert "default-src 'none'" in response.headers["Content-Security-Policy"]
        assert "unsafe" not in response.headers["Content-Security-Policy"]
        assert response.headers["Cache-Control"] == "no-store"
        return response.text

    async def token(self, path: str = "/add") -> str:
        found = re.search(r'name="token" value="([0-9a-f]{64})"', await self.get(path))
        assert found is not None
        return found[1]

    async def post(
        self, path: str, *files: tuple[str, bytes], token: str | None = None, **fields: str
    ) -> httpx.Response:
        """Send a form as a browser does, with the token of this session."""
        fields = {"token": await self.token() if token is None else token, **fields}
        parts: list[Any] = [(name, (None, value.encode())) for name, value in fields.items()]
        parts += [("file", (name, data)) for name, data in files] or [("file", ("", b""))]
        return await self.http.post(path, files=parts, headers=HTML)

    async def done(self, path: str, *files: tuple[str, bytes], **fields: str) -> str:
        """Send a form that is accepted and return the target of its redirect."""
        response = await self.post(path, *files, **fields)
        assert response.status_code == 303, response.text
        return response.headers["Location"]


Open = Callable[..., AbstractAsyncContextManager[Site]]


@pytest.fixture
def opened(tmp_path: Path) -> Open:
    @asynccontextmanager
    async def open_site(**members: Any) -> AsyncIterator[Site]:
        settings = ServerSettings(home=tmp_path, **members)
        async with simulated_engine() as engine:
            client = InterruptedEngine(engine.url)
            async with Services(settings, engine=client) as services:
                pages = Pages(services) if site_part(settings) else None
                app = build_app(
                    settings,
                    mount([build_toolset("kb", services)], ["kb"]),
                    routes=pages.routes() if pages else (),
                    root=pages.root if pages else None,
                )
                async with serving(app) as served:
                    yield Site(served, engine, client)
            await client.close()

    return open_site


@pytest.fixture
async def site(opened: Open) -> AsyncIterator[Site]:
    async with opened() as site:
        yield site


def input_value(html: str, name: str) -> str:
    """Return the value of a form's field."""
    found = re.search(rf'<input [^>]*name="{name}"[^>]* value="([^"]*)"', html)
    assert found is not None
    return unescape(found[1])


def plain(html: str) -> str:
    """Return the text of a page without its markup."""
    return " ".join(unescape(re.sub(r"<[^>]*>", "", html)).split())


async def test_the_first_page_is_for_browsers_and_json_for_others(site: Site) -> None:
    assert "The base is empty" in await site.get("/")
    assert (await site.http.get("/")).json()["mcp"] == ["/mcp", "/mcp/kb"]


async def test_the_file_of_a_document_is_saved_and_never_shown(site: Site) -> None:
    site.engine.state.keeps_originals = True
    data = EVIL.encode() * 4_000
    await site.done("/add", ("a.html", data), collection="documents")
    assert '<a href="/documents/1/original" download>a.html</a>' in await site.get("/documents/1")
    response = await site.http.get("/documents/1/original", headers=HTML)
    assert (response.status_code, response.content) == (200, data)
    assert response.headers["Content-Type"] == "application/octet-stream"
    assert response.headers["Content-Disposition"].startswith("attachment; ")
    assert response.headers["Content-Security-Policy"] == "default-src 'none'; sandbox"
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert response.headers["Cache-Control"] == "no-store"


async def test_a_document_without_a_file_says_so(site: Site) -> None:
    await site.done("/add", ("a.txt", b"granite"), collection="documents")
    assert "/documents/1/original" not in await site.get("/documents/1?page=1")
    assert "KB_KEEP_ORIGINALS" in plain(await site.get("/documents/1/original", 404))


async def test_a_file_wants_a_login_too(opened: Open) -> None:
    async with opened(api_key="secret") as site:
        response = await site.http.get("/documents/1/original", headers=HTML)
        assert (response.status_code, response.headers["Location"].partition("?")[0]) == (303, "/login")


async def test_a_hit_opens_at_its_page_of_the_file(site: Site) -> None:
    """The picture is drawn anew, so nothing in the file runs; a browser asks each time for its copy."""
    site.engine.state.keeps_originals = True
    action = f"/OpenAction << /S /JavaScript /JS ({EVIL}) >>"
    evil = pdf(["quartz", f"granite {EVIL}", "basalt"]).replace(
        b"/Type /Catalog", f"/Type /Catalog {action}".encode()
    )
    await site.done("/add", ("<b>&quot;onload=.pdf", evil), collection="documents")
    (hit,) = re.findall(r'href="(/documents/1[^"]*)"', await site.get("/?q=granite"))
    page = await site.get(unescape(hit))
    assert hit.endswith("#p1")
    (address,) = re.findall(
        r'<div class="hit" id="p1">.*?<img src="([^"]*)" alt="Page 2 of the file">', page, re.DOTALL
    )
    assert re.findall(r'href="([^"]*)#picture"', page) == [
        f"/documents/1?offset=0&amp;{each}"
        for each in ("page=1", "page=2", "passage=1&amp;page=1", "passage=1&amp;page=3", "page=3")
    ]
    marked = await site.http.get(unescape(address))
    headers = ("Content-Type", "X-Content-Type-Options", "Cache-Control")
    assert [marked.headers[name] for name in headers] == ["image/png", "nosniff", "private, no-cache"]
    assert marked.headers["Content-Security-Policy"] == visit.HEADERS["Content-Security-Policy"]
    assert marked.content != (await site.http.get("/documents/1/picture?page=2")).content
    for held in (marked.headers["ETag"], "*"):
        known = await site.http.get(unescape(address), headers={"If-None-Match": held})
        assert (known.status_code, known.content) == (304, b"")
    for place, is_beside in (("page=3", True), ("page=3&offset=99", False)):
        shown = await site.get(f"/documents/1?{place}")
        assert ("Page 3 of 3" in plain(shown), 'class="hit" id=' in shown) == (True, is_beside)
    assert "<figure" not in await site.get("/documents/1?page=4")
    for wrong in ("page=4", "page=0", "page=x", "passage=-1"):
        await site.get(f"/documents/1/picture?{wrong}", 422)
    await site.done("/documents/1/remove")
    assert (
        await site.http.get(unescape(address), headers={"If-None-Match": marked.headers["ETag"]})
    ).status_code == 404


async def test_pages_show_markup_of_documents_literally(site: Site) -> None:
    """Title, text, tags, metadata, source and query are shown literally, without creating elements."""
    site.engine.add(
        "collection:memory",
        "<b>tag",
        text=f"granite {EVIL}",
        title=EVIL,
        metadata={EVIL: [EVIL]},
        source_path=EVIL,
    )
    await site.done("/documents/1/note", title=EVIL, text=f"{EVIL} basalt", version="1")
    site.engine.add(text=f"removed {EVIL}", title=EVIL)
    await site.done("/documents/2/remove")
    past = ["/documents/1/versions", "/documents/1/versions/1", "/trash", "/documents/2/versions/1"]
    for path in [*EVERY, *past, f"/?q=granite {EVIL}", f"/documents?path={EVIL}", f"/login?to={EVIL}"]:
        response = await site.http.get(path, headers=HTML)
        scripts = re.findall(r"<script[^>]*>", response.text)
        assert scripts in ([], ['<script src="/pages/kb.js" defer>']), path
        assert not re.search(r"<style|<b>|\son\w+=|style=", response.text), path
        assert "49" not in plain(response.text).replace("&#49", ""), path
    assert EVIL in plain(await site.get("/documents/1")).replace("& ", "&")


async def test_the_start_page_shows_the_base_after_one_round_of_calls(site: Site) -> None:
    for number in range(3):
        site.engine.add("collection:memory", EVIL, text=f"granite {number}", title=f"{number} {EVIL}")
    site.engine.add("collection:books", text="basalt", doc_type="markdown")
    await site.done("/add", ("damaged.pdf", b"%PDF-1.7 and no more"))
    all_at_once = asyncio.Barrier(6)

    async def together(make: Callable[[], Awaitable[Any]]) -> Any:
        await all_at_once.wait()
        return await make()

    site.client.around = dict.fromkeys(("getStatus", "listTags", "listDocuments", "listJobs"), together)
    page = await asyncio.wait_for(site.get("/"), ANSWER_SECONDS)
    text = plain(page)
    for words in (
        "Changed last, of 4 documents", "written last, by agents and people", "4 documents with 4 passages",
        "1 job failed", "damaged.pdf: ", "memory 3 documents, 3 passages", "books 1 document, 1 passage",
        "note 3 documents", "markdown 1 document",
    ):  # fmt: skip
        assert words in text
    assert re.findall(r'<rect class="bar1" y="0" width="([0-9.]+)%"', page) == ["100.0", "33.3"] * 2
    assert "<script>alert" not in page


async def test_the_start_page_shows_questions_growth_and_languages(site: Site) -> None:
    site.engine.add(text="granite")
    for query in ("granite", "obsidian"):
        await site.client.call(ops.SEARCH, body=m.SearchRequest(query=query, mode="fts"))
    page = await site.get("/")
    assert "2 questions since" in page
    assert "1 found nothing" in page
    assert "By language" not in page

    async def grown(make: Callable[[], Awaitable[Any]]) -> Any:
        status = await make()
        weeks = [("2026-11-16", 1, 2), ("2026-11-23", 4, 8)]
        growth = [m.GrowthWeek(week=week, documents=one, chunks=two) for week, one, two in weeks]
        days = [m.QuestionDay(day=day, total=4, unanswered=2) for day in ("2026-11-25", "2026-11-27")]
        status.history = m.History(growth=growth, languages={"de": 1}, questions=days, unanswered=[EVIL])
        status.documents.total = 4
        return status

    site.client.around["getStatus"] = grown
    page = await site.get("/")
    assert re.findall(
        r'class="bar1" x="([0-9.]+)%" y="[0-9.]+%" width="[0-9.]+%" height="([0-9.]+)%"', page
    ) == [
        *(("0.0", "100.0"), ("33.33", "0.0"), ("66.67", "100.0")),
        *(("0.0", "25.0"), ("50.0", "100.0")) * 2,
    ]
    assert [each in plain(page) for each in ("German 1 document", "unknown 3 documents", "8 questions")] == [
        True
    ] * 3
    assert f'href="/?q={quote(EVIL, safe="/")}"' in page
    assert "<script>alert" not in page
    site.client.around.clear()
    earlier_engine = Status("unknown_parameter", "There is no query parameter history.")
    site.engine.arm("internal_error", "getStatus", earlier_engine)
    assert "questions since" not in await site.get("/")


async def test_tags_and_collections_lead_to_their_documents_with_counts(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counts are those of the page; `/collections` counts the whole base, also beyond one list of tags."""
    monkeypatch.setattr(visit, "_PAGE", 2)
    monkeypatch.setattr(document_pages, "_TAGS", 2)
    for number in range(3):
        site.engine.add("collection:memory", *["rock", "a&b"][: number + 1], text=f"granite {number}")
    site.engine.add("collection:books", "a&b", "zinc", text="basalt")
    site.engine.add("collection:Old Stones", text="gneiss")
    for path, words in (
        ("/documents?collection=Old%20Stones", "1 to 1 of 1 document"),
        ("/?q=gneiss&collection=Old+Stones", "1 passage matches"),
        ("/?q=granite&collection=memory", "3 passages match, the best first. In these results: a&b (2)"),
        ("/documents?collection=memory", "On this page: a&b (2) 1 to 3 of 3 documents"),
        ("/documents?tag=rock,a%26b&collection=memory", "1 to 2 of 2 documents"),
        ("/collections", "rock 3 documents, 3 passages These are the 2 most used of 3 tags."),
        ("/documents/2", "memory rock a&b version 1"),
    ):
        text = plain(await site.get(path)).replace("( ", "(")
        assert words in text, text
    moved = await site.http.get("/documents?tags=rock,a%26b&collection=memory", headers=HTML)
    assert moved.headers["Location"] == "/documents?collection=memory&tag=rock%2Ca%26b"
    links = re.findall(r'href="([^"]*tag=[^"]*)"', await site.get("/?q=granite&tag=rock&cursor="))
    assert "/?q=granite&tag=rock%2Ca%26b" in map(unescape, links)


@pytest.mark.parametrize(
    ("form", "tags"),
    [
        ({"action": "tag", "tags": "new, rock"}, ["collection:memory", "new", "rock"]),
        ({"action": "move", "collection": "stones"}, ["collection:stones"]),
        ({"action": "remove"}, None),
    ],
    ids=["tag", "move", "remove"],
)
async def test_several_documents_are_changed_after_a_confirmation_and_named(
    site: Site, form: dict[str, str], tags: list[str] | None
) -> None:
    for number in range(1, 4):
        site.engine.add("collection:memory", text=f"granite {number}", title=f"{number} {EVIL}")
    assert 'type="checkbox" name="id" value="2"' in await site.get("/documents")
    before = len(site.engine.journal.changes())
    chosen = {"id": ["1", "2", "99"], **form}
    page = await site.get(f"/documents/selected?{urlencode(chosen, doseq=True)}")
    assert len(site.engine.journal.changes()) == before
    assert ("There is no document 99" in page, plain(page).count("alert(1)")) == (True, 2)
    hidden = {name: input_value(page, name) for name in ("ids", "action", "tags", "collection")}
    response = await site.post("/documents/selected", **hidden)
    text = plain(response.text)
    assert (response.status_code, ": 2 of 3" in text, "document 99: Document 99 was not found." in text) == (
        200,
        True,
        True,
    )
    assert [f"{number} {markup(EVIL)}" in response.text for number in (1, 2, 3)] == [True, True, False]
    documents = site.engine.state.documents.by_id
    left = [sorted(documents[number].document.tags) for number in (1, 2, 3) if number in documents]
    assert left == ([tags, tags] if tags else []) + [["collection:memory"]]
    undo = input_value(response.text, "undo")
    assert (await site.post("/documents/undo", undo=undo, token="of another session")).status_code == 403
    for count, reasons in ((2, 0), (0, 2)):
        text = plain((await site.post("/documents/undo", undo=undo)).text)
        assert (f"Undone: {count} of 2" in text, text.count("It was changed since")) == (True, reasons)
        documents = site.engine.state.documents.by_id
        assert [documents[number].document.tags for number in (1, 2, 3)] == [["collection:memory"]] * 3


@pytest.mark.parametrize(
    "undo",
    [
        "",
        "[]",
        "1",
        '[["../1",1]]',
        '[["1",1,["a"],"b",2]]',
        '[["1",1,[".."]]]',
        '[["1",-1,["a"]]]',
        "[" * 5_000,
        EVIL,
    ],
)
async def test_a_form_that_undoes_nothing_is_refused(site: Site, undo: str) -> None:
    response = await site.post("/documents/undo", undo=undo)
    assert (response.status_code, "undoes nothing" in response.text) == (422, True)


async def test_undo_keeps_tags_that_were_there_and_documents_changed_since(site: Site) -> None:
    site.engine.add("collection:memory", "rock", text="granite")
    site.engine.add("collection:memory", text="basalt")
    fields = {"ids": "1,2", "action": "tag", "tags": "new, rock"}
    undo = input_value((await site.post("/documents/selected", **fields)).text, "undo")
    await site.client.call(ops.ADD_TAGS, path={"document_id": 2}, body=m.TagsRequest(tags=["later"]))
    assert "Undone: 1 of 2" in plain((await site.post("/documents/undo", undo=undo)).text)
    documents = site.engine.state.documents.by_id
    assert sorted(documents[1].document.tags) == ["collection:memory", "rock"]
    assert "new" in documents[2].document.tags


async def test_after_an_engine_that_is_away_the_other_documents_are_not_tried(site: Site) -> None:
    for number in range(3):
        site.engine.add("collection:memory", text=f"granite {number}")
    site.engine.arm("internal_error", "addTags", times=None)
    fields = {"ids": "1,2,3", "action": "tag", "tags": "new"}
    text = plain((await site.post("/documents/selected", **fields)).text)
    assert (": 0 of 3" in text, text.count("Not tried")) == (True, 2)
    fault = Fault("internal_error", match=Match(operation="createJob"), when=When(nth=2))
    site.engine.namespace.faults.arm(fault)
    text = plain((await site.post("/add", *((f"{number}.md", b"x") for number in range(3)))).text)
    assert ("Received: 1 of 3" in text, text.count("Not tried")) == (True, 1)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("action=remove", "Choose 1 to 50 documents"),
        ("action=remove&id=..", "Choose 1 to 50 documents"),
        ("action=clear&id=1", "Choose a change"),
        ("action=tag&id=1", "Write the tags"),
        ("action=tag&id=1&tags=collection:x", "names a collection"),
        ("action=move&id=1&collection=A B", "not a collection name"),
    ],
)
async def test_an_invalid_selection_is_refused_with_its_reason(site: Site, query: str, words: str) -> None:
    assert words in plain(await site.get(f"/documents/selected?{query}", 422))
    fields = {**dict(parse_qsl(query)), "token": await site.token()}
    response = await site.post("/documents/selected", **{**fields, "ids": fields.pop("id", "")})
    assert (response.status_code, words in plain(response.text)) == (422, True)
    assert not site.engine.journal.changes()


async def test_a_search_finds_marks_and_leads_to_its_passage(site: Site) -> None:
    for number in range(12):
        site.engine.add("collection:memory", text=f"granite stones number{number}")
    page = await site.get("/?q=granite&collection=memory&type=note&mode=fts")
    assert page.count("<mark>granite</mark>") == 10
    assert '<a data-source="document" href="/documents/1?offset=0#p0">' in page
    following = re.search(r'rel="next" href="([^"]*)"', page)
    assert following is not None
    assert (await site.get(unescape(following[1]))).count("<mark>granite</mark>") == 2
    assert "Nothing was found" in await site.get("/?q=granite&collection=nowhere")


async def test_results_far_below_the_best_are_folded_and_long_ones_unfold(site: Site) -> None:
    site.engine.add("collection:memory", text="granite basalt gneiss schist. " + "Sand is soft. " * 40)
    for number in range(3):
        site.engine.add("collection:memory", text=f"Sand, clay and granite number {number}. " + "Silt. " * 90)
    page = await site.get("/?q=granite basalt gneiss schist&mode=fts")
    near, far = page.split('<details class="far">')
    assert (
        "3 more results with less than half of the best score" in far,
        near.count("<li>"),
        far.count("<li>"),
    ) == (True, 1, 3)
    assert near.count('<details class="passage">') == 1


async def test_a_note_is_written_changed_placed_and_removed(site: Site) -> None:
    assert (
        await site.done("/add", text="granite\r\n\r\nis hard", title="Stone", tags="rock, hard ")
        == "/jobs?done=added"
    )
    assert "Stone" in await site.get("/jobs?done=added")
    page = await site.get("/documents/1/note")
    assert ">\ngranite\n\nis hard</textarea>" in page
    assert (
        await site.done("/documents/1/note", title="Stone", text="basalt\r\n", version="1")
        == "/documents/1?done=saved"
    )
    assert "basalt" in await site.get("/documents/1?done=saved")
    page = await site.get("/documents/1")
    before = {name: input_value(page, name) for name in ("collection_before", "tags_before")}
    assert before == {"collection_before": "documents", "tags_before": "rock, hard"}
    form = {"collection": "memory", "tags": "hard, new", **before}
    assert await site.done("/documents/1/tags", **form) == "/documents/1?done=saved"
    assert sorted(site.engine.document().tags) == ["collection:memory", "hard", "new"]
    assert await site.done("/documents/1/remove") == "/documents?done=removed"
    await site.get("/documents/1", 404)


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ({"tags": "one, gone, two"}, ["agent", "collection:memory", "one", "two"]),
        ({"tags": ""}, ["agent", "collection:memory"]),
        ({"tags": "one, gone, agent"}, ["agent", "collection:memory", "one"]),
        ({"collection": "stones"}, ["agent", "collection:stones", "one"]),
    ],
)
async def test_editing_tags_keeps_concurrent_changes_of_tags(
    site: Site, form: dict[str, str], expected: list[str]
) -> None:
    """The concurrent change removed `gone`, added `agent`, and moved the document into `memory`."""
    site.engine.add("collection:documents", "one", "gone")
    page = await site.get("/documents/1")
    names = ("collection", "collection_before", "tags", "tags_before")
    site.engine.set_tags("collection:memory", "one", "agent")
    form = {**{name: input_value(page, name) for name in names}, **form}
    await site.done("/documents/1/tags", **form)
    assert sorted(site.engine.document().tags) == expected


async def test_a_version_is_shown_and_restored(site: Site) -> None:
    uid = site.engine.add("collection:memory", text="granite\nis hard", title="Stone").uid
    assert "There are none" in await site.get("/documents/1/versions")
    await site.done("/documents/1/note", title="Lava", text="basalt\nis hard", version="1")
    assert f'href="/documents/{uid}/versions/1">Stone</a>' in await site.get("/documents/1/versions")
    page = plain(await site.get(f"/documents/{uid}/versions/1"))
    assert "-granite +basalt is hard" in page
    assert "granite is hard" in page
    there = await site.done(f"/documents/{uid}/versions/1/restore")
    assert there == "/documents/1?done=restored"
    assert "Stone" in await site.get(there)
    assert plain(await site.get("/documents/1/versions")).count("Lava") == 1
    await site.get("/documents/1/versions/9", 404)


async def test_a_removed_document_is_listed_and_brought_back(site: Site) -> None:
    uid = site.engine.add(text="granite", title="Stone").uid
    await site.done("/documents/1/remove")
    assert f'href="/documents/{uid}/versions/1">Stone</a>' in await site.get("/trash")
    removed = await site.get("/documents/1", 404)
    assert ("Document 1 was removed" in removed, f'"/documents/{uid}/versions/1"' in removed) == (True, True)
    assert "granite" in await site.get(f"/documents/{uid}/versions/1")
    assert await site.done(f"/documents/{uid}/versions/1/restore") == "/documents/1?done=restored"
    assert "There are none" in await site.get("/trash")
    assert await site.done("/documents/1/remove", purge="1") == "/documents?done=purged"
    assert "There are none" in await site.get("/trash")
    await site.get("/documents/1/versions", 404)


async def test_a_long_text_of_a_version_is_read_in_parts(site: Site) -> None:
    site.engine.add(text="granite " * 20_000)
    await site.done("/documents/1/remove")
    page = await site.get("/documents/1/versions/1")
    following = re.search(r'rel="next" href="([^"]*)"', page)
    assert following is not None
    rest = await site.get(unescape(following[1]))
    assert page.count("granite") + rest.count("granite") in (20_000, 20_001)


async def test_a_lost_race_shows_both_texts_and_keeps_theirs(site: Site) -> None:
    site.engine.add("collection:memory", text="granite")
    site.engine.edit()
    response = await site.post("/documents/1/note", text="mine", title="Mine", version="1")
    assert response.status_code == 409
    assert ">\nmine</textarea>" in response.text
    assert "granite" in response.text
    assert 'name="version" value="2"' in response.text, "to save again replaces theirs"
    assert site.engine.document().title == "Edited"


async def test_a_note_of_any_length_is_changed_as_it_was_sent(site: Site) -> None:
    """The chunks would not suffice: they lack white space, and one page of them is incomplete."""
    text = "\n".join(f"  granite {number}\n" for number in range(20_000))
    site.engine.add("collection:memory", text=text)
    found = re.search(
        r'<textarea name="text"[^>]*>\n(.*)</textarea>', await site.get("/documents/1/note"), re.S
    )
    assert found is not None
    assert unescape(found[1]) == text


async def test_a_file_is_read_passage_by_passage_and_is_no_note(site: Site) -> None:
    words = "\n\n".join(f"granite {number} " * 40 for number in range(400))
    assert await site.done("/add", ("a.md", words.encode())) == "/jobs?done=added"
    page = await site.get("/documents/1")
    assert 'id="p99"' in page
    assert 'id="p100"' not in page
    following = re.search(r'rel="next" href="([^"]*)"', page)
    assert following is not None
    assert 'id="p100"' in await site.get(unescape(following[1]))
    assert "Only notes can be edited" in await site.get("/documents/1/note", 422)


async def test_files_arrive_whole_and_leave_nothing_behind(site: Site, tmp_path: Path) -> None:
    files = [("a.txt", b"granite " * 150_000), ("b.txt", b"basalt"), ("c d'.txt", b"gneiss")]
    await site.done("/add", *files, collection="stones")
    assert site.engine.journal.files() == [sha256(data) for _, data in files]
    assert site.engine.document().tags == ["collection:stones"]
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


async def test_good_files_are_taken_and_each_bad_one_is_named_with_its_reason(
    opened: Open, tmp_path: Path
) -> None:
    async with opened(max_upload_bytes=1_000) as site:
        files = [(f"{number}.md", b"x" * (number + 1)) for number in range(33)]
        bad = [("a.exe", b"MZ"), ("large.md", bytes(1_001)), (EVIL, b"x")]
        response = await site.post("/add", *bad, *files, text="a note")
        text = plain(response.text)
        assert (response.status_code, len(site.engine.journal.files())) == (200, 32)
        for words in (
            "Received: 33 of 37 a.exe: ", "large.md: It has more than 1000 bytes.",
            "32.md: A form takes 32 files at most. Send this one again.", "The note: received 0.md: received",
        ):  # fmt: skip
            assert words in text, text
        assert "<script>alert" not in response.text
        site.engine.arm("refused", "createJob", Status(code="undecodable_text"))
        text = plain((await site.post("/add", ("bad.txt", b"x"), ("b.md", b"b"))).text)
        assert ("Received: 1 of 2 bad.txt: " in text, "b.md: received" in text) == (True, True)
        form = site.http.build_request(
            "POST", "/add", files=[("token", (None, await site.token())), ("file", ("_.md", b"x"))]
        )
        body, kind = form.read().replace(b'"_', b'"\xff'), form.headers["Content-Type"]
        response = await site.http.post("/add", content=body, headers={**HTML, "Content-Type": kind})
        assert "Nothing was added. ?.md: " in plain(response.text)
        assert not [path for path in tmp_path.rglob("*") if path.is_file()]


async def test_files_beyond_the_quota_of_a_key_are_named_and_the_others_added(
    opened: Open, tmp_path: Path
) -> None:
    file = KeyFile(tmp_path / "keys.json")
    _, key = file.create("ci", rights=rights_of(["read", "write"]), quotas=Quotas(documents_per_day=1))
    async with opened(keys=str(file.path)) as site:
        await site.http.post("/login", files={"key": (None, key)}, headers=HTML)
        text = plain((await site.post("/add", ("a.md", b"a"), ("b.md", b"b"))).text)
        assert ("Received: 1 of 2 b.md: This key may add" in text, "a.md: received" in text) == (True, True)


async def test_invalid_additions_are_refused_before_they_reach_the_engine(
    opened: Open, tmp_path: Path
) -> None:
    async with opened(max_upload_bytes=1_000) as site:
        for status, words, files, fields, field in [
            (422, "a.md: It has more than 1000 bytes", [("a.md", bytes(1_001))], {}, "file"),
            (422, "a.exe: ", [("a.exe", b"MZ")], {}, "file"),
            (413, "too large", [("a.exe", bytes(2_001))], {}, "file"),
            (422, "Choose a file, or write a text", [], {"text": " \n "}, "text"),
            (422, "not a collection name", [], {"text": "x", "collection": "Not a name"}, "collection"),
            (422, "not a tag", [], {"text": "x", "tags": "a/b"}, "tags"),
            (
                422,
                "`title` takes a string of 1 to 500 characters.",
                [],
                {"text": "x", "title": "x" * 501},
                "title",
            ),
            (413, "too large", [], {"text": "x" * (5 * m.MAX_NOTE_CHARS + 1)}, ""),
        ]:
            response = await site.post("/add", *files, **fields)
            assert (response.status_code, words in plain(response.text)) == (status, True), response.text
            main = response.text.partition("<main")[2].replace('type="file" ', "")
            reasons = re.findall(r'<\w+ name="(\w+)"(?:(?!</label>).)*role="alert"', main, re.S)
            assert reasons == ([field] if field else []), response.text
        assert not site.engine.journal.changes()
        assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("path", ["/add", "/documents/1/note", "/documents/1/tags"])
async def test_a_refused_form_comes_back_as_it_was_typed(site: Site, path: str) -> None:
    site.engine.add("collection:memory", text="granite")
    typed = {
        "title": EVIL,
        "text": f"{EVIL}\nmine",
        "tags": "a/b",
        "collection": "Not a name",
        "version": "1",
    }
    typed |= {"tags_before": EVIL, "collection_before": "x"}
    if path.endswith("note"):
        typed["title"] = EVIL * 20  # too long
    response = await site.post(path, **typed)
    assert (response.status_code, 'role="alert"' in response.text) == (422, True)
    for name, value in typed.items():
        if f'name="{name}"' in response.text and name != "text":
            assert input_value(response.text, name) == value
    assert path.endswith("tags") or f">\n{markup(typed['text'])}</textarea>" in response.text
    assert "<script>alert" not in response.text
    assert [path for _, path in site.engine.journal.changes() if path != "/api/v1/search"] == []


async def test_a_note_comes_back_when_the_engine_is_away(site: Site) -> None:
    token = await site.token()
    for operation in ("createJob", "listTags"):
        site.engine.arm("internal_error", operation, times=None)
    response = await site.post("/add", token=token, text="mine", title="Mine")
    assert (response.status_code, ">\nmine</textarea>" in response.text) == (502, True)


async def test_a_restricted_key_chooses_from_its_collections(opened: Open, tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "keys.json")
    rights = rights_of(["read", "write"])
    _, exact = file.create("exact", rights=rights, collections=("stones", "bees"))
    _, family = file.create("family", rights=rights, collections=("team-*",))
    async with opened(keys=str(file.path)) as site:
        site.engine.add("collection:secret", text="granite", title="Hidden")
        for key, field in ((exact, '<select name="collection">'), (family, '<input name="collection"')):
            await site.http.post("/login", files={"key": (None, key)}, headers=HTML)
            page = await site.get("/add")
            assert field in page
            assert not re.search("secret|Hidden", await site.get("/"))
            options = re.findall(r'<option value="([^"]*)"', page)
            assert options == (["bees", "stones"] if key == exact else [])


async def test_a_key_is_offered_only_the_changes_in_its_rights(opened: Open, tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "keys.json")
    _, key = file.create("reader", rights=rights_of(["read"]))
    async with opened(keys=str(file.path)) as site:
        site.engine.add("collection:memory", text="granite", metadata={"left": ["a", "b"]})
        await site.http.post("/login", files={"key": (None, key)}, headers=HTML)
        page = await site.get("/documents/1")
        assert not re.search(r">(?:Add|Edit|Remove|Save)<", page)
        assert "checkbox" not in await site.get("/documents")
        fields = {"token": await site.token("/documents"), "ids": "1", "action": "remove"}
        assert (await site.post("/documents/selected", **fields)).status_code == 403
        assert ">a, b</dd>" in page
        for path in ("/add", "/documents/1/note", "/documents/1/remove"):
            assert "This key may not" in plain(await site.get(path, 403))


async def test_an_address_without_a_page_says_so_to_browsers(site: Site) -> None:
    assert "No such page" in await site.get("/nowhere", 404)
    assert "No such page" in await site.get(f"/documents/{EVIL}", 404)
    for method in ("GET", "POST"):
        answer = await site.http.request(method, "/nowhere")
        assert (answer.status_code, answer.json()["error"]) == (404, "not_found")
    assert (await site.http.get("/documents/1/tags", headers=HTML)).status_code == 405
    assert (await site.http.head("/documents", headers=HTML)).status_code == 200


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/?q=granite&mode=best", "`mode` takes one of"), ("/?q=-granite", "minus"),
        ("/?q=granite&cursor=zzz", "cursor"),
        ("/?q=granite&type=stone", "doc_type"), ("/?q=granite&collection=A/B", "collection name"),
        ("/documents?offset=-1", "`offset` takes an integer from 0 to"),
        ("/documents?offset=many", "`offset` takes an integer from 0 to"),
        ("/documents?sort=colour", "sort_by"), ("/jobs?status=lost", "status"),
        ("/documents/1?offset=-1", "chunk_offset"),
    ],
)  # fmt: skip
async def test_a_parameter_that_does_not_fit_is_said(site: Site, path: str, words: str) -> None:
    text = plain(await site.get(path, 422))
    assert words in text
    assert not re.search(r"\$\.|Expected|a JSON value|enum value", text)


async def test_a_page_beyond_the_end_does_not_claim_that_there_is_nothing(site: Site) -> None:
    await site.done("/add", text="granite", collection="memory")
    for path, words in (
        ("/documents/1", "The text ends before this page."),
        ("/documents", "The list ends before this page."),
        ("/jobs", "The list ends before this page."),
        ("/documents/1/versions", "There are none."),
    ):
        assert words in plain(await site.get(f"{path}?offset=1"))


async def test_a_form_of_a_stranger_changes_nothing(opened: Open) -> None:
    """A token of another session fails, even from a page on this machine, which shares the cookies."""
    async with opened() as site, opened() as other:
        site.engine.add("collection:memory", text="granite")
        before = len(site.engine.journal.changes())
        foreign = await other.token()
        for token in ["", foreign, "0" * 64]:
            for path in [
                "/add",
                "/documents/selected",
                "/documents/1/note",
                "/documents/1/tags",
                "/documents/1/remove",
                "/logout",
            ]:
                fields = {"text": "x", "version": "1", "ids": "1", "action": "remove"}
                response = await site.post(path, ("a.md", b"x"), token=token, **fields)
                assert response.status_code == 403, path
        response = await site.http.post(
            "/documents/1/remove", data={"token": await site.token()}, headers=HTML
        )
        assert response.status_code == 415
        headers = {**HTML, "Origin": "https://evil.example"}
        assert (await site.http.post("/documents/1/remove", headers=headers)).status_code == 403
        assert len(site.engine.journal.changes()) == before


async def test_no_file_of_a_stranger_is_taken(opened: Open) -> None:
    """The token precedes the files, so that a file that is too large is refused for the token."""
    async with opened(max_upload_bytes=10) as site:
        response = await site.post("/add", ("a.md", bytes(11)), token="0" * 64)
        assert response.status_code == 403


async def test_pages_want_the_key_and_their_cookie_opens_nothing_else(opened: Open) -> None:
    async with opened(api_key="secret", public_url="https://kb.example") as site:
        for method, path in product(("GET", "HEAD"), EVERY):
            response = await site.http.request(method, path, headers=HTML)
            assert response.status_code == 303, path
            assert response.headers["Location"].startswith("/login?to=%2F"), path
        wrong = await site.http.post("/login", files={"key": (None, "wrong")}, headers=HTML)
        assert (wrong.status_code, COOKIE in wrong.headers.get("Set-Cookie", "")) == (403, False)
        right = await site.http.post(
            "/login", files={"key": (None, "secret"), "to": (None, "/jobs?status=failed")}, headers=HTML
        )
        assert (right.status_code, right.headers["Location"]) == (303, "/jobs?status=failed")
        cookie = right.headers["Set-Cookie"]
        assert all(each in cookie for each in ("HttpOnly", "SameSite=Strict", "Secure", "Max-Age=604800"))
        session = {"Cookie": cookie.partition(";")[0]}
        page = await site.http.get("/jobs", headers={**HTML, **session})
        assert page.status_code == 200
        assert "secret" not in page.text
        for headers in (session, {**session, "Authorization": f"Bearer {session['Cookie']}"}):
            call = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
            assert (
                await site.served.http.post("/mcp", json=call, headers={**PLAIN, **headers})
            ).status_code == 401
            assert (await site.http.get("/metrics", headers={**headers, "Via": "1.1 x"})).status_code == 401
        for forged in ("x", "9999999999.00.00", session["Cookie"].partition("=")[2] + "0"):
            response = await site.http.get("/jobs", headers={**HTML, "Cookie": f"{COOKIE}={forged}"})
            assert response.status_code == 303


@pytest.mark.parametrize(
    "there", ["//evil.example", "/\\evil.example", "https://evil.example", "evil", "/a\r\nb", ""]
)
async def test_a_login_leads_nowhere_else(opened: Open, there: str) -> None:
    async with opened(api_key="secret") as site:
        form = {"key": (None, "secret"), "to": (None, there)}
        response = await site.http.post("/login", files=form, headers=HTML)
        assert response.headers["Location"] == "/"


async def test_uploads_without_a_session_are_refused(opened: Open, tmp_path: Path) -> None:
    async with opened(api_key="secret") as site:
        for files in ({"file": ("a.md", b"x")}, {"key": (None, "x" * 100_000)}):
            response = await site.http.post("/login", files=files, headers=HTML)
            assert response.status_code == 413
        assert (await site.http.post("/add", files={"file": ("a.md", b"x")}, headers=HTML)).status_code == 303
        assert not [path for path in tmp_path.rglob("*") if path.is_file()]


async def test_with_an_oauth_issuer_the_pages_need_a_key(opened: Open) -> None:
    async with opened(parts=(OAuthSettings(oauth_issuer="https://issuer.example"),)) as site:
        for path in EVERY:
            response = await site.http.get(path, headers=HTML)
            assert (response.status_code, response.headers["Location"].partition("?")[0]) == (303, "/login")
        fields = {"token": (None, ""), "text": (None, "planted")}
        response = await site.http.post("/add", files=fields, headers=HTML)
        assert response.headers["Location"] == "/login"
        assert "kb keys create" in await site.get("/login")
        response = await site.http.post("/login", files={"key": (None, "")}, headers=HTML)
        assert (response.status_code, "Set-Cookie" in response.headers) == (403, False)


async def test_without_a_session_no_form_is_ours(site: Site) -> None:
    """Without a cookie the token would be the same for every client."""
    assert (
        await site.post("/add", token=Sessions(KeyRing(None, {})).form_token(""), text="x")
    ).status_code == 403
    site.http.cookies.clear()
    assert (
        await site.post("/add", token=Sessions(KeyRing(None, {})).form_token(""), text="x")
    ).status_code == 403


async def test_a_key_that_is_known_is_no_guess_and_hears_what_is_wrong(
    opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_aiohttp.guard.WrongTokens", partial(WrongTokens, clock=lambda: 0.0))
    file = KeyFile(tmp_path / "keys.json")
    _, tools = file.create("tools", rights=rights_of(["read"]), toolsets=("kb",))
    _, revoked = file.create("revoked", rights=rights_of(["read"]))
    file.revoke("revoked")
    async with opened(keys=str(file.path), trusted_proxies=["127.0.0.1"]) as site:
        elsewhere = {**HTML, "X-Forwarded-For": "192.0.2.1"}

        async def login(key: str) -> httpx.Response:
            return await site.http.post("/login", files={"key": (None, key)}, headers=elsewhere)

        for _ in range(12):
            assert "not for pages" in plain((await login(tools)).text)
            assert "was revoked" in plain((await login(revoked)).text)
        for _ in range(12):
            refused = await login("wrong")
        assert refused.status_code == 429
        assert int(refused.headers["Retry-After"]) > 0


async def test_a_form_that_stops_coming_is_not_waited_for(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forms, "_SILENCE_SECONDS", 0.1)
    async with opened(api_key="secret") as site:
        reader, writer = await asyncio.open_connection("127.0.0.1", site.served.port)
        head = f"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Type: {BOUNDARY}\r\n"
        writer.write(f"{head}Content-Length: 100\r\n\r\n--b\r\n".encode())
        answer = await asyncio.wait_for(reader.readuntil(b"\r\n"), ANSWER_SECONDS)
        writer.close()
    assert answer.startswith(b"HTTP/1.1 408 ")


async def test_a_login_without_a_key_leads_to_the_pages(site: Site) -> None:
    assert (await site.http.get("/login", headers=HTML)).headers["Location"] == "/"
    assert "Log out" not in await site.get("/")


async def test_logging_out_ends_the_session(opened: Open) -> None:
    async with opened(api_key="secret") as site:
        await site.http.post("/login", files={"key": (None, "secret")}, headers=HTML)
        assert await site.done("/logout") == "/login"
        assert (await site.http.get("/jobs", headers=HTML)).status_code == 303


BOUNDARY = "multipart/form-data; boundary=b"


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (BOUNDARY, b""),
        (BOUNDARY, b"--b\r\n"),
        (BOUNDARY, b'--b\r\nContent-Disposition: form-data; name="text"\r\n\r\ngranite'),
        (BOUNDARY, b'--b\r\nContent-Disposition: form-data; name="text"\r\n\r\n\xff\xfe\r\n--b--\r\n'),
        (BOUNDARY, b"--b\r\nContent-Disposition: form-data\r\n\r\nx\r\n--b--\r\n"),
        (
            BOUNDARY,
            b"--b\r\nContent-Type: multipart/mixed; boundary=c\r\n\r\n--c\r\n\r\nx\r\n--c--\r\n--b--\r\n",
        ),
        (BOUNDARY, b"--b\r\n" + b"X: y\r\n" * 10_000 + b"\r\n\r\n--b--\r\n"),
        (
            BOUNDARY,
            b"".join(b'--b\r\nContent-Disposition: form-data; name="%d"\r\n\r\nx\r\n' % n for n in range(40)),
        ),
        ("multipart/form-data", b"x"),
        ("application/json", b"{}"),
        ("", b""),
    ],
)
async def test_a_body_that_is_not_a_form_is_refused(site: Site, kind: str, body: bytes) -> None:
    response = await site.http.post("/add", content=body, headers={**HTML, "Content-Type": kind})
    assert response.status_code in (400, 403, 413, 415), response.text
    assert "That did not work" in response.text
    assert not site.engine.journal.changes()


@pytest.mark.parametrize(
    ("fault", "status", "said"),
    [("internal_error", 502, "The engine failed"), ("not_ready", 503, "The engine is busy")],
)
async def test_a_failing_or_busy_engine_is_answered_with_its_status(
    site: Site, fault: str, status: int, said: str
) -> None:
    site.engine.arm(fault, "listDocuments", times=None)
    assert said in plain(await site.get("/documents", status))


async def test_jobs_are_cancelled_and_tried_again(site: Site) -> None:
    await site.done("/add", ("a.pdf", b"%PDF-1.7 and no more"))
    page = await site.get("/jobs")
    found = re.search(r'action="(/jobs/[0-9a-f-]{36}/retry)"', page)
    assert found is not None, page
    assert await site.done(found[1]) == "/jobs?done=queued"
    assert "failed" in plain(await site.get("/jobs?done=queued"))
    refused = await site.post(found[1].replace("retry", "cancel"))
    assert (refused.status_code, "has ended already" in plain(refused.text)) == (409, True)


async def test_without_pages_there_are_none(opened: Open) -> None:
    async with opened(parts=(PagesSettings(pages=False),)) as site:
        assert (await site.http.get("/", headers=HTML)).json()["health"] == "/healthz"
        assert (await site.http.get("/documents", headers=HTML)).status_code == 404


@pytest.mark.process
async def test_many_visits_at_once(site: Site) -> None:
    site.engine.add("collection:memory", text="granite")
    pages = await asyncio.gather(*(site.get(path) for path in EVERY[:-1] * 5))
    assert len(pages) == 55
