"""The pages of `kb up` in a real Chromium: typical use, and an audit with axe-core.

With `KB_PICTURES` set to a folder, the pictures of the documentation are saved there.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import httpx
import pytest

from kb_contracts.api import models as m
from kb_contracts.api import operations as ops
from kb_server.engine_client.client import HttpEngine
from kb_server.engine_client.port import FileSource
from tests.conformance import node
from tests.support.browser import CHROMIUM, Browser, chromium, opened
from tests.support.patience import ANSWER_SECONDS, JOB_SECONDS
from tests.support.stack import ROOT, Stack, running_stack

pytestmark = [pytest.mark.process, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")]

KEY = "the-key-of-the-pages"
EVIL = "<img src=x onerror='document.title=1'><script>document.title=1</script>"
NARROW = 360
WAITING = ops.NoteQuery(wait=30)
PICTURES = os.environ.get("KB_PICTURES")


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    home = tmp_path_factory.mktemp("pages")
    embedder = {} if PICTURES else {"KB_EMBEDDER": "hash"}
    with running_stack(home, KB_MCP_API_KEY=KEY, KB_TOOLSETS="kb", **embedder) as stack:
        yield stack


@pytest.fixture(scope="module")
def chrome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with chromium(tmp_path_factory.mktemp("chromium")) as address:
        yield address


@pytest.fixture
async def browser(stack: Stack, chrome: str) -> AsyncIterator[Browser]:
    """A tab on the first page, logged in."""
    async with opened(chrome) as browser:
        await browser.look()
        await browser.open(f"{stack.server_url}/")
        await browser.fill("[name=key]", KEY)
        await browser.press("main button")
        yield browser
        assert not browser.problems


@pytest.fixture
async def engine(stack: Stack) -> AsyncIterator[HttpEngine]:
    client = HttpEngine(stack.engine_url)
    yield client
    await client.close()


async def follow_newest(browser: Browser) -> None:
    """Open the document of the newest job in the list, when it exists."""
    await browser.until("!!document.querySelector('#live tbody tr:first-child a')")
    await browser.press("#live tbody tr:first-child a")


async def put(browser: Browser, stack: Stack, name: str, text: str, title: str = "") -> None:
    await browser.open(f"{stack.server_url}/add")
    await browser.fill("[name=title]", title)
    await browser.value(
        "const files = new DataTransfer();"
        f"files.items.add(new File([{json.dumps(text)}], {json.dumps(name)}));"
        "document.querySelector('.drop').dispatchEvent("
        "new DragEvent('drop', {dataTransfer: files, bubbles: true, cancelable: true}))"
    )
    assert await browser.value("document.querySelector('[type=file]').files.length") == 1
    await browser.press("main form button")


def test_pages_are_complete_without_scripts(stack: Stack) -> None:
    with httpx.Client(
        base_url=stack.server_url, headers={"Accept": "text/html"}, timeout=ANSWER_SECONDS
    ) as http:
        http.post("/login", files={"key": (None, KEY)})
        for path in ("/", "/documents", "/add", "/jobs", "/state"):
            assert "</main>" in http.get(path).raise_for_status().text


async def test_a_person_logs_in_and_out(stack: Stack, chrome: str) -> None:
    async with opened(chrome) as browser:
        await browser.open(f"{stack.server_url}/jobs")
        assert "Log in" in await browser.text()
        await browser.fill("[name=key]", "wrong")
        await browser.press("main button")
        assert "not the key" in await browser.text()
        await browser.fill("[name=key]", KEY)
        await browser.press("main button")
        assert await browser.value("location.pathname") == "/jobs"
        assert await browser.value("document.cookie") == "", "no script reads the session"
        await browser.press(".logout button")
        await browser.open(f"{stack.server_url}/documents")
        assert "Log in" in await browser.text()


async def test_keys_lead_from_the_start_to_a_passage(
    stack: Stack, browser: Browser, engine: HttpEngine
) -> None:
    async def stroke(key: str, text: str = "", code: int = 0) -> None:
        for event in ("keyDown", "keyUp"):
            typed = {"text": text} if event == "keyDown" else {}
            await browser.send(
                "Input.dispatchKeyEvent", type=event, key=key, windowsVirtualKeyCode=code, **typed
            )

    for text in ("Medlars are eaten soft.", "Medlars ripen in January."):
        job = await engine.call(ops.CREATE_JOB, body=m.NoteRequest(text=text))
        await engine.wait_for_job(job.id, JOB_SECONDS)
    await browser.open(f"{stack.server_url}/add")
    await browser.value("document.querySelector('textarea').focus()")
    await stroke("/", "/")
    assert await browser.value("document.activeElement.value") == "/", "the letter is not taken away"
    await browser.value("window.left = true; document.activeElement.blur()")
    await stroke("/", "/")
    await browser.loaded()
    await browser.value("document.activeElement.blur()")
    await stroke("/", "/")
    await browser.send("Input.insertText", text="medlars")
    await browser.value("window.left = true")
    await stroke("Enter", "\r", 13)
    await browser.loaded()
    titles = await browser.value(
        "[...document.querySelectorAll('.results h2 a')].map(each => each.innerText)"
    )
    for key in ("ArrowDown", "ArrowDown", "ArrowUp", "ArrowDown"):
        await stroke(key)
    assert await browser.value("document.activeElement.innerText") == titles[1]
    await browser.value("window.left = true")
    await stroke("Enter", "\r", 13)
    await browser.loaded()
    assert titles[1] in await browser.text()
    assert "/documents/" in await browser.value("location.pathname")


async def test_a_note_is_written_found_edited_and_removed(stack: Stack, browser: Browser) -> None:
    await browser.open(f"{stack.server_url}/add")
    await browser.fill("[name=text]", f"Marmalade keeps for a year.\n{EVIL}")
    await browser.fill("[name=title]", EVIL)
    await browser.press("main form button")
    await browser.until("!!document.querySelector('#live tbody tr:first-child a')")
    await browser.open(f"{stack.server_url}/?q=how+long+does+marmalade+keep")
    await browser.until("document.querySelector('mark')?.innerText === 'Marmalade'")
    assert await browser.value("document.querySelectorAll('img').length") == 0
    assert "kb" in await browser.value("document.title")
    await browser.press(".results a")
    await browser.press("a[href$='/note']")
    await browser.fill("[name=text]", "Marmalade keeps for two years.")
    await browser.press("main form button")
    assert "two years" in await browser.text()
    await browser.press("a[href$='/remove']")
    await browser.press("main form button")
    assert "Removed." in await browser.text()
    await browser.press("a[href='/trash']")
    await browser.press("main tbody tr:first-child a")
    assert "two years" in await browser.text()
    await browser.press("main form button")
    assert "Restored." in await browser.text()
    await browser.press("a[href$='/versions']")
    await browser.press("main tbody tr:first-child a")
    assert "-Marmalade keeps for a year." in await browser.text()


async def test_a_file_is_dropped_and_its_job_followed(stack: Stack, browser: Browser) -> None:
    await put(browser, stack, "preserves.md", "# Preserves\n\nQuince paste is cut into squares.\n" * 400)
    await follow_newest(browser)
    assert "Quince paste" in await browser.text()


async def test_two_who_edit_a_note_do_not_lose_a_word(
    stack: Stack, browser: Browser, engine: HttpEngine
) -> None:
    await browser.open(f"{stack.server_url}/add")
    await browser.fill("[name=text]", "Chutney of plums.")
    await browser.press("main form button")
    await follow_newest(browser)
    await browser.press("a[href$='/note']")
    note = str(await browser.value("location.pathname")).split("/")[2]
    path = {"document_id": note}
    await engine.call(ops.PATCH_NOTE, path=path, query=WAITING, body=m.NotePatch(text="Chutney of pears."))
    await browser.fill("[name=text]", "Chutney of figs.")
    await browser.value("window.left = true")
    await browser.value("document.querySelector('main form button').click()")
    await browser.loaded()
    assert "The note was changed meanwhile" in await browser.text()
    assert "Chutney of pears." in await browser.text()
    assert await browser.value("document.querySelector('textarea').value") == "Chutney of figs."
    await browser.press("main form button")
    assert "Chutney of figs." in await browser.text()
    browser.problems.clear()  # Chromium notes the 409


async def test_axe_finds_nothing_and_no_page_is_wider_than_the_window(
    stack: Stack, browser: Browser, engine: HttpEngine
) -> None:
    """Wide and light, narrow and dark; violations of any impact count."""
    node.install()
    axe = (node.HERE / "node_modules/axe-core/axe.min.js").read_text("utf-8")
    numbers: dict[str, int | None] = {}
    for path in sorted((ROOT / "examples/documents").iterdir()):
        data = path.read_bytes()
        fields = m.FileFields(source_path=path.name, tags=["collection:documents"])
        job = await engine.send_file(FileSource(path.name, len(data), partial(_blocks, data)), fields)
        numbers[path.name] = (await engine.wait_for_job(job.id, JOB_SECONDS)).document_id
    job = await engine.call(ops.CREATE_JOB, body=m.NoteRequest(text="User prefers concise responses"))
    note = (await engine.wait_for_job(job.id, JOB_SECONDS)).document_id
    document = numbers["garden-soil.pdf"]
    patch = m.NotePatch(text="User prefers tables")
    await engine.call(ops.PATCH_NOTE, path={"document_id": note}, query=WAITING, body=patch)
    gone = numbers.popitem()[1]
    await engine.call(ops.DELETE_DOCUMENT, path={"document_id": gone})
    paths = {
        "search": "/?q=how+do+worms+help+the+soil", "nothing": "/?q=%22no+such+phrase%22", "home": "/",
        "documents": "/documents", "document": f"/documents/{document}",
        "selected": f"/documents/selected?id={document}&id={note}&action=remove",
        "note": f"/documents/{note}/note", "remove": f"/documents/{document}/remove",
        "versions": f"/documents/{note}/versions", "version": f"/documents/{note}/versions/1",
        "trash": "/trash", "add": "/add", "collections": "/collections", "jobs": "/jobs", "state": "/state",
        "missing": "/documents/999999",
    }  # fmt: skip
    await _audit(browser, stack.server_url, axe, paths)
    browser.problems.clear()  # Chromium notes the 404
    await browser.press(".logout button")
    await _audit(browser, stack.server_url, axe, {"login": "/login"})
    await _audit(browser, stack.engine_url, axe, {"api": "/docs"})
    browser.problems.clear()  # Chromium asks the engine for an icon


async def _blocks(data: bytes) -> AsyncIterator[bytes]:
    yield data


async def _audit(browser: Browser, base: str, axe: str, paths: dict[str, str]) -> None:
    for name, path in paths.items():
        for width, dark in ((1200, False), (NARROW, True)):
            await browser.look(width=width, dark=dark)
            await browser.open(f"{base}{path}")
            if PICTURES:
                kind = "narrow" if dark else "wide"
                Path(PICTURES, f"{name}-{kind}.png").write_bytes(await browser.picture())
            await browser.value("document.querySelectorAll('details').forEach(each => each.open = true)")
            where = f"{path}, {width} wide, {'dark' if dark else 'light'}"
            assert await browser.value("document.documentElement.scrollWidth") <= width, where
            await browser.value(axe)
            found = json.loads(await browser.value("axe.run().then(JSON.stringify)"))
            assert found["passes"], "it looked at something"
            assert not found["violations"], f"{where}: {json.dumps(found['violations'], indent=1)[:4_000]}"
