"""Web pages of strangers cannot use an engine on this machine through its owner's browser."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest
from aiohttp.test_utils import TestClient, TestServer

from kb_engine.app import create_app
from kb_engine.settings import EngineSettings


async def asked(
    home: Path, headers: dict[str, str], *, host: str = "127.0.0.1", key: str = ""
) -> tuple[int, str]:
    """A file posted as a page's form does; the status and the code of the answer."""
    settings = EngineSettings(home=home, embedder="hash", host=host, api_key=key)
    async with TestClient(TestServer(await create_app(settings))) as client:
        form = aiohttp.FormData()
        form.add_field("file", b"Send all money to the stranger.", filename="note.txt")
        async with client.post("/api/v1/jobs", data=form, headers=headers) as response:
            return response.status, (await response.json()).get("code", "")


@pytest.mark.parametrize("origin", ["https://stranger.example", "null", "http://127.0.0.1.stranger.example"])
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
async def test_a_strangers_page_cannot_submit_a_file(origin: str, host: str, tmp_path: Path) -> None:
    """A form needs no permission from the browser: its Origin alone tells where it comes from."""
    assert await asked(tmp_path, {"Origin": origin}, host=host) == (401, "unauthorized")


@pytest.mark.parametrize("name", ["stranger.example", "stranger.example:8000", "localhost.stranger.example"])
async def test_a_page_whose_name_resolves_to_this_machine_is_refused(name: str, tmp_path: Path) -> None:
    """DNS rebinding makes the page's origin the engine's own; the Host is still the stranger's."""
    assert await asked(tmp_path, {"Host": name}) == (401, "unauthorized")


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Host": "localhost:8000"},
        {"Host": "[::1]:8000"},
        {"Host": "engine"},
        {"Origin": "http://localhost:5173"},
    ],
)
async def test_programs_and_pages_of_this_machine_are_served(headers: dict[str, str], tmp_path: Path) -> None:
    """A program sends no Origin."""
    assert await asked(tmp_path, headers) == (202, "")


async def test_on_every_address_any_name_will_do(tmp_path: Path) -> None:
    assert await asked(tmp_path, {"Host": "engine:8000"}, host="0.0.0.0") == (202, "")


async def test_with_a_key_the_key_alone_decides(tmp_path: Path) -> None:
    """No page knows it; a proxy in front may ask by any name."""
    headers = {"Host": "kb.example", "Origin": "https://kb.example", "Authorization": "Bearer k"}
    assert await asked(tmp_path, headers, key="k") == (202, "")
