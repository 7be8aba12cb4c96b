"""`kb reindex`: the remedy that the engine names if the configured embedder is not the base's."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from kb_cli.main import main
from kb_cli.output import Exit
from kb_engine.app import create_app
from kb_engine.settings import EngineSettings
from kb_engine.store.port import BaseRefused, EmbedderIdentity
from kb_engine.store.repository import documents, jobs, state
from kb_engine.store.sqlite.sqlite_store import open_sqlite
from tests.support.postgres import PASSWORD, Database, give_back, new_database
from tests.support.stores import EMBEDDER, new_note, opened, prepared


async def fill(path: Path) -> None:
    """Create a base of two chunks, filled by an embedder unknown to kb."""
    path.parent.mkdir(parents=True)
    store = await open_sqlite(path, embedder=EMBEDDER)
    await store.once(None, jobs.accept, new_note("honey bees keep warm"))
    leased = await store.write(jobs.take, "lease")
    assert leased is not None
    assert await store.write(documents.commit, leased, prepared("honey bees", " keep warm")) is not None
    await store.close()


@pytest.fixture
def settings(tmp_path: Path) -> EngineSettings:
    """Settings with the hash embedder for a base that another embedder filled."""
    chosen = EngineSettings(home=tmp_path / "home", embedder="hash")
    asyncio.run(fill(chosen.database))
    return chosen


def test_a_base_of_another_embedder_opens_after_reindexing(
    settings: EngineSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(BaseRefused, match="kb reindex"):
        asyncio.run(create_app(settings))
    arguments = ["reindex", "--home", str(settings.home), "--embedder", "hash", "--json"]
    assert main(arguments) == Exit.OK
    answer = json.loads(capsys.readouterr().out)
    assert (answer["chunks"], answer["base"]) == (2, str(settings.database))

    async def counted() -> int:
        store = await open_sqlite(settings.database, embedder=EmbedderIdentity(answer["embedder"], 256))
        try:
            return (await store.read(state.counts)).chunks
        finally:
            await store.close()

    assert asyncio.run(counted()) == 2


@pytest.mark.process
def test_a_base_on_postgresql_is_reindexed_without_telling_its_password(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def filled() -> Database:
        database = await new_database()
        async with opened(database) as base:
            await base.note("honey bees", " keep warm")
        return database

    database = asyncio.run(filled())
    monkeypatch.setenv("KB_STORE", database.url)
    assert main(["reindex", "--home", str(tmp_path), "--embedder", "hash", "--json"]) == Exit.OK
    shown = capsys.readouterr()
    assert json.loads(shown.out)["chunks"] == 2
    assert json.loads(shown.out)["base"] == str(database.address)
    assert PASSWORD not in shown.out + shown.err
    give_back(database)


def test_without_a_base_there_is_nothing_to_reindex(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reindex", "--home", str(tmp_path), "--embedder", "hash"]) == Exit.FAILED
    assert "kb.sqlite" in capsys.readouterr().err
