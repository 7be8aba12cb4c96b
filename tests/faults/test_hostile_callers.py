"""What a hostile caller leaves behind in a running server: nothing.

What is refused, and in which words, is proven by the unit tests and those of the protocol.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

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
