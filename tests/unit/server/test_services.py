"""The services: errors at start, late initialization, and closing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kb_config.settings import SettingsError
from kb_contracts.api.operations import GET_STATUS
from kb_server.engine_client.errors import EngineUnreachable
from kb_server.services import Services, http_base
from kb_server.settings import ServerSettings
from kb_server.uploads.upload import NewUpload
from tests.support.simulated_engine import simulated_engine

NEW = NewUpload("a.txt", 3, ["collection:documents"], "collection:documents")


def settings(home: Path, **rest: object) -> ServerSettings:
    return ServerSettings(home=home, **rest)  # type: ignore[arg-type]


@pytest.mark.requirement("K3", "K4", "K5")
async def test_url_and_key_of_the_environment_reach_the_engine(tmp_path: Path) -> None:
    async with simulated_engine("secret") as engine:
        environment = {"KB_ENGINE_URL": engine.url, "KB_API_KEY": "secret", "KB_HOME": str(tmp_path)}
        read = ServerSettings.read(environment)
        async with Services(read) as services:
            await services.engine.call(GET_STATUS)
            assert await services.unready() == ""
    assert {each.headers["Authorization"] for each in engine.journal.requests()} == {"Bearer secret"}


async def test_an_engine_that_is_too_old_is_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kb_simulator.engine.state.API_VERSION", "v0.1.0")
    async with simulated_engine() as engine, Services(settings(tmp_path, engine_url=engine.url)) as services:
        assert "upgrade" in await services.unready()


@pytest.mark.requirement("K6")
async def test_starting_needs_no_engine(tmp_path: Path) -> None:
    async with Services(settings(tmp_path, engine_url="http://127.0.0.1:1")) as services:
        assert "no engine is ready at http://127.0.0.1:1" in await services.unready()
        with pytest.raises(EngineUnreachable):
            await services.engine.call(GET_STATUS)


@pytest.mark.parametrize(
    "url", ["engine:8000", "ftp://engine", "http://", "", "http://engine:x", "http://[", "/"]
)
def test_an_engine_url_that_is_none_is_refused_at_start(tmp_path: Path, url: str) -> None:
    with pytest.raises(SettingsError, match="KB_ENGINE_URL"):
        Services(settings(tmp_path, engine_url=url))


@pytest.mark.parametrize("key", ["se\ncret", "sécret", "a\x00"])
def test_a_key_that_no_header_takes_is_refused_at_start(tmp_path: Path, key: str) -> None:
    with pytest.raises(SettingsError, match="KB_API_KEY") as refused:
        Services(settings(tmp_path, engine_api_key=key))
    assert key not in str(refused.value)


async def test_services_write_no_files_before_the_first_upload(tmp_path: Path) -> None:
    async with Services(settings(tmp_path / "home")) as services:
        assert services.uploads is services.uploads
        assert not (tmp_path / "home").exists()


async def test_a_data_folder_that_cannot_be_read_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "staging").write_text("in the way")
    async with Services(settings(tmp_path)):
        pass


async def test_at_start_the_remains_of_dead_servers_are_removed(tmp_path: Path) -> None:
    """This does not wait for the first upload, because they may hold a user's documents."""
    dead = tmp_path / "staging" / "dead"
    dead.mkdir(parents=True)
    async with Services(settings(tmp_path)):
        assert not dead.exists()


async def test_closing_removes_its_own_staging_and_ends_its_sweeper(tmp_path: Path) -> None:
    async with Services(settings(tmp_path)) as services:
        await services.uploads.start(NEW, "me")
    assert list((tmp_path / "staging").iterdir()) == []
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "uploads-sweeper"]


@pytest.mark.parametrize(
    ("given", "bound", "base"),
    [
        ({}, None, "http://127.0.0.1:3000"),
        ({"host": "0.0.0.0", "port": 3001}, None, "http://127.0.0.1:3001"),
        ({"host": "::"}, None, "http://127.0.0.1:3000"),
        ({"host": "::1"}, None, "http://[::1]:3000"),
        ({"host": "kb.internal"}, None, "http://kb.internal:3000"),
        ({"host": "0.0.0.0", "public_url": "https://kb.example/base/"}, 4711, "https://kb.example/base"),
        ({"port": 0}, 4711, "http://127.0.0.1:4711"),
    ],
)
def test_urls_for_agents_have_the_public_base_or_the_listening_address(
    tmp_path: Path, given: dict[str, object], bound: int | None, base: str
) -> None:
    assert http_base(settings(tmp_path, **given), bound) == base
