"""Unfinished uploads are removed with their chunks from a running server after their lifetime."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.eventually import eventually
from tests.support.mcp_http import Caller
from tests.support.stack import running_stack


@pytest.mark.process
def test_expired_uploads_leave_no_staged_bytes(tmp_path: Path) -> None:
    with running_stack(tmp_path, KB_EMBEDDER="hash", KB_UPLOAD_TTL="3") as stack:
        caller = Caller(stack.mcp_url)
        with caller.http:

            def stage() -> bool:
                """Send a chunk; False if the upload had expired before."""
                upload = caller.ok("kb_upload_start", filename="never.txt", total_size=3)["upload_id"]
                sent = caller.call("kb_upload_chunk", upload_id=upload, chunk_index=0, data="YQ==")
                return not sent["isError"]

            eventually(stage, what="a chunk in the lifetime of its upload")

        def staged() -> list[str]:
            folder = stack.home / "staging"
            return [path.name for path in folder.rglob("*") if path.is_file() and path.stat().st_size]

        eventually(staged, lambda names: not names, what="sweeping the staged chunks")
