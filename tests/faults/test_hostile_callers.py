"""What a careless or hostile caller sends to a running server: each a clear error, nothing left behind."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.eventually import eventually
from tests.support.mcp_http import Caller
from tests.support.stack import Stack, running_stack

pytestmark = pytest.mark.process

KEY = "the-right-key"
DATA = base64.b64encode(b"abc").decode()


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack with a key, whose uploads expire after three seconds."""
    home = tmp_path_factory.mktemp("home")
    with running_stack(home, KB_MCP_API_KEY=KEY, KB_EMBEDDER="hash", KB_UPLOAD_TTL="3") as running:
        yield running


@pytest.fixture
def caller(stack: Stack) -> Iterator[Caller]:
    """A caller with the right key; none of its requests may have been answered with a 5xx."""
    calling = Caller(stack.mcp_url, KEY)
    yield calling
    calling.http.close()
    assert max(calling.statuses, default=0) < 500


@pytest.mark.requirement("K12")
def test_a_missing_bearer_is_401(stack: Stack) -> None:
    for method in ("POST", "GET", "DELETE"):
        answer = httpx.request(method, stack.mcp_url, content=b"{")
        assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, "Bearer")


@pytest.mark.requirement("K13")
@pytest.mark.parametrize(
    "value", ["Bearer wrong", "Bearer", "Basic dGhlLXJpZ2h0LWtleQ==", f"Bearer {KEY} "[:-2]]
)
def test_a_wrong_bearer_is_401(stack: Stack, value: str) -> None:
    answer = httpx.post(stack.mcp_url, json={}, headers={"Authorization": value})
    assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, "Bearer")


def test_a_foreign_origin_is_403(caller: Caller) -> None:
    """A web page elsewhere cannot drive the server through a browser."""
    answer = caller.post(b'{"jsonrpc":"2.0","id":1,"method":"ping"}', Origin="https://attacker.example")
    assert answer.status_code == 403
    assert "Origin" in answer.text


def test_a_body_of_twenty_mebibytes_is_413(caller: Caller) -> None:
    """The answer names the limit."""
    answer = caller.post(b'{"jsonrpc":"2.0","id":1,"method":"ping","params":"' + b"x" * (20 << 20) + b'"}')
    assert answer.status_code == 413
    assert "12" in answer.text


def test_a_fault_in_base64_is_told_and_the_chunk_can_be_sent_again(caller: Caller) -> None:
    """Nothing of the faulty chunk is kept."""
    upload = caller.ok("kb_upload_start", filename="a.txt", total_size=3)["upload_id"]
    for fault in ("YW!j", "YWJ", "YWJj\n", "é"):
        refused = caller.refused("kb_upload_chunk", upload_id=upload, chunk_index=0, data=fault)
        assert refused["error"] == "invalid_base64"
    caller.ok("kb_upload_chunk", upload_id=upload, chunk_index=0, data=DATA)
    assert caller.ok("kb_upload_finish", upload_id=upload)["job_id"]


def test_a_negative_chunk_index_is_refused_by_name(caller: Caller) -> None:
    """The parameter and what it takes."""
    upload = caller.ok("kb_upload_start", filename="a.txt", total_size=3)["upload_id"]
    refused = caller.refused("kb_upload_chunk", upload_id=upload, chunk_index=-1, data=DATA)
    assert refused["error"] == "invalid_parameter"
    assert "chunk_index" in refused["message"]


def test_a_gap_names_the_missing_chunk(caller: Caller) -> None:
    """Chunk 1 of three was never sent."""
    upload = caller.ok("kb_upload_start", filename="a.txt", total_size=9)["upload_id"]
    for index in (0, 2):
        caller.ok("kb_upload_chunk", upload_id=upload, chunk_index=index, data=DATA)
    refused = caller.refused("kb_upload_finish", upload_id=upload)
    assert "1" in refused["message"]
    assert "missing" in refused["message"].lower()


def test_a_wrong_total_names_both_numbers(caller: Caller) -> None:
    """Announced 7 bytes, sent 3."""
    upload = caller.ok("kb_upload_start", filename="a.txt", total_size=7)["upload_id"]
    caller.ok("kb_upload_chunk", upload_id=upload, chunk_index=0, data=DATA)
    message = caller.refused("kb_upload_finish", upload_id=upload)["message"]
    assert "7" in message
    assert "3" in message


@pytest.mark.parametrize("tool", ["kb_upload_chunk", "kb_upload_finish"])
@pytest.mark.parametrize("upload_id", ["8b4e8f0e-9d1c-4c53-9c1a-5f2f6f0c9d11", "../../etc/passwd", ""])
def test_an_unknown_upload_id_is_not_found(caller: Caller, tool: str, upload_id: str) -> None:
    arguments = {"upload_id": upload_id}
    if tool == "kb_upload_chunk":
        arguments |= {"chunk_index": 0, "data": DATA}  # type: ignore[dict-item]
    refused = caller.refused(tool, **arguments)
    assert refused["error"] in {"upload_not_found", "invalid_parameter"}


@pytest.mark.parametrize("collection", ["../x", "", "Memory", "a" * 64, "x:y", "a/b", "collection:x"])
def test_a_collection_that_is_no_name_is_refused(caller: Caller, collection: str) -> None:
    for tool, arguments in (
        ("kb_addnote", {"text": "hello"}),
        ("kb_search", {"query": "hello"}),
        ("kb_upload_start", {"filename": "a.txt", "total_size": 1}),
    ):
        refused = caller.refused(tool, collection=collection, **arguments)
        assert "collection" in refused["message"]


@pytest.mark.parametrize("filename", ["../../etc/passwd", "a/b.txt", "..", "a\x00.txt", "x" * 300 + ".txt"])
def test_a_file_name_that_is_a_path_never_becomes_one(caller: Caller, stack: Stack, filename: str) -> None:
    """It is refused, or its last component alone is used."""
    result = caller.call("kb_upload_start", filename=filename, total_size=1)
    if not result.get("isError"):
        upload = result["structuredContent"]["upload_id"]
        caller.call("kb_upload_chunk", upload_id=upload, chunk_index=0, data="YQ==")
        caller.call("kb_upload_finish", upload_id=upload)
    assert not Path("/etc/passwd.txt").exists()
    names = [path.name for path in stack.home.rglob("*")]
    assert not any("passwd" in name for name in names)


def test_nothing_is_left_behind(caller: Caller, stack: Stack) -> None:
    """Uploads that were never finished are swept away with their chunks after their time."""
    caller.ok("kb_upload_start", filename="never.txt", total_size=3)

    def staged() -> list[str]:
        folder = stack.home / "staging"
        return [path.name for path in folder.rglob("*") if path.is_file() and path.stat().st_size]

    eventually(staged, lambda names: not names, seconds=30, what="sweeping the staged chunks")
