"""What this engine tells of itself, and what it keeps over a restart."""

from __future__ import annotations

import asyncio
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest

from kb_engine.address import address_of
from tests.contract.conftest import Start
from tests.support.engine_http import Caller
from tests.support.postgres import PASSWORD, new_server


@pytest.mark.requirement("K52")
async def test_status_names_this_machine_and_the_folder(kb: Caller, tmp_path: Path) -> None:
    """The model runs here, and an empty base has not changed yet."""
    status = await kb.status()
    assert status["last_updated"] is None
    assert status["device"] == {"type": "cpu", "threads": 1}
    assert status["storage"]["path"] == str(tmp_path / "engine")


async def test_a_store_that_is_damaged_is_an_issue_with_its_path(start: Start, tmp_path: Path) -> None:
    """The rest of the status is told."""
    kb = await start()
    await kb.note("granite")
    await start.stop()
    kb = await start()
    base = tmp_path / "engine" / "kb.sqlite"
    base.write_bytes(b"\xff" * base.stat().st_size)
    status = await kb.status()
    (issue,) = status["issues"]
    assert issue.startswith(f"The base {base} cannot be read: ")
    assert (status["storage"]["accessible"], status["version"]) == (False, "v3.0.0")


async def test_a_store_that_is_gone_is_an_issue_with_its_path(start: Start, tmp_path: Path) -> None:
    """The figures are those that were read last."""
    kb = await start()
    await kb.note("granite")
    before = await kb.status()
    shutil.rmtree(tmp_path / "engine")
    status = await kb.status()
    (issue,) = status["issues"]
    assert issue.startswith(f"The base {tmp_path}/engine/kb.sqlite cannot be read: ")
    assert status["storage"] == {**before["storage"], "accessible": False}
    assert (status["documents"], status["chunks"]) == (before["documents"], 1)
    assert before["storage"]["accessible"] is True


async def test_a_database_that_is_away_is_an_issue_with_its_address(start: Start) -> None:
    """Without its password; once it is back there is none."""
    server = await asyncio.to_thread(new_server)
    await server.run("CREATE DATABASE base")
    kb = await start(store=server.url("base"))
    await asyncio.to_thread(server.stop)
    status = await kb.status()
    (issue,) = status["issues"]
    assert issue.startswith(f"The base {address_of(server.url('base'))} cannot be read: ")
    assert (status["storage"]["accessible"], PASSWORD in str(status)) == (False, False)
    await asyncio.to_thread(server.start)
    again = await kb.status()
    assert (again["issues"], again["storage"]["accessible"]) == ([], True)
    await start.stop()
    await asyncio.to_thread(server.remove)


@pytest.mark.process
async def test_the_model_is_named_before_it_is_loaded(start: Start) -> None:
    """Asked at once after the start; loading it is no condition for being ready."""
    kb = await start(embedder="minilm")
    status = await kb.status()
    assert status["model"]["name"] == "sentence-transformers/all-MiniLM-L6-v2"
    assert status["model"]["dimensions"] == 384


@pytest.mark.process
@pytest.mark.requirement("E25")
async def test_nothing_is_asked_of_the_network(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the model that is the default: taken in and found by meaning, from this machine alone."""
    connect = socket.socket.connect

    def connect_here(self: socket.socket, address: Any) -> None:
        if self.family in {socket.AF_INET, socket.AF_INET6} and address[0] != "127.0.0.1":
            raise AssertionError(f"a connection to {address}")
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", connect_here)
    kb = await start(embedder="minilm")
    document = await kb.note("A bicycle was left at the railway station")
    await kb.note("Bread is baked from flour and water")
    answer = await kb.search("two-wheeled vehicle near the trains", mode="vector", top=1)
    assert [result["document"]["id"] for result in answer["results"]] == [document]


async def test_the_base_survives_a_restart(start: Start) -> None:
    """Documents are found again, by words and by meaning."""
    kb = await start()
    document = await kb.note("granite quarry")
    await start.stop()
    again = await start()
    assert await again.found("granite") == [document]
    assert await again.found("granite quarry", mode="vector") == [document]
