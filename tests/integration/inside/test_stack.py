"""The stack from inside its own network, run by the runner of `compose.test.yml`.

Without that environment, which contains the addresses, it is skipped.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.support.mcp_http import Caller
from tests.support.patience import ANSWER_SECONDS

SERVER = os.environ.get("KB_TEST_SERVER_URL", "")
ENGINE = os.environ.get("KB_TEST_ENGINE_URL", "")
SIMULATED_SERVER = os.environ.get("KB_TEST_SIMULATED_SERVER_URL", "")
CONTROL = os.environ.get("KB_TEST_CONTROL_URL", "")
ENGINE_KEY = os.environ.get("KB_API_KEY", "")
SERVER_KEY = os.environ.get("KB_MCP_API_KEY", "")

pytestmark = pytest.mark.process

if not SERVER:
    pytest.skip("runs beside the stack: see compose.test.yml", allow_module_level=True)


@pytest.fixture
def caller() -> Iterator[Caller]:
    calling = Caller(f"{SERVER}/mcp", SERVER_KEY)
    yield calling
    calling.http.close()


@pytest.fixture
def control() -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{CONTROL}/_sim", timeout=ANSWER_SECONDS) as client:
        client.post("/reset", json={})
        yield client
        client.delete("/faults")


@pytest.fixture
def simulated() -> Iterator[Caller]:
    calling = Caller(f"{SIMULATED_SERVER}/mcp", SERVER_KEY)
    yield calling
    calling.http.close()


def remember(caller: Caller) -> tuple[str, Any]:
    """Add a note with a unique word and return the word and the note's id."""
    word = f"w{uuid4().hex}"
    added = caller.ok("kb_addnote", text=f"The {word} sails at dawn", collection="memory", wait_seconds=20)
    return word, added["document_id"]


@pytest.mark.requirement("K2", "K8", "E31")
def test_a_note_goes_through_the_server_to_the_engine_by_their_service_names(caller: Caller) -> None:
    word, document = remember(caller)
    found = caller.ok("kb_search", query=word, collection="memory", mode="fts")["results"]
    assert [result["document_id"] for result in found] == [document]
    headers = {"Authorization": f"Bearer {ENGINE_KEY}"}
    answer = httpx.get(f"{ENGINE}/api/v1/documents/{document}", headers=headers, timeout=ANSWER_SECONDS)
    assert "collection:memory" in answer.json()["tags"]


def test_the_keys_are_wanted_by_both() -> None:
    wrong = {"Authorization": "Bearer another"}
    assert (
        httpx.post(f"{SERVER}/mcp", content=b"{}", headers=wrong, timeout=ANSWER_SECONDS).status_code == 401
    )
    assert httpx.get(f"{ENGINE}/api/v1/status", headers=wrong, timeout=ANSWER_SECONDS).status_code == 401


def test_the_simulator_keeps_the_same_promise(control: httpx.Client, simulated: Caller) -> None:
    word, document = remember(simulated)
    found = simulated.ok("kb_search", query=word, collection="memory", mode="fts")["results"]
    assert [result["document_id"] for result in found] == [document]


def test_a_fault_of_the_simulator_is_told_by_the_server(control: httpx.Client, simulated: Caller) -> None:
    """An error that names it, and normal service after the fault is removed."""
    fault = {"name": "internal_error", "match": {"operation": "getStatus"}}
    assert control.post("/faults", json=fault).is_success
    assert simulated.refused("kb_status")["error"].startswith("engine_")
    control.delete("/faults")
    assert simulated.ok("kb_status")["version"].startswith("v3.")
