"""Containers killed, disconnected and restarted while agents write: acknowledged data exist once."""

from __future__ import annotations

import base64
from collections import Counter

import pytest

from tests.integration.conftest import Images
from tests.integration.containers import Engine, Lab, Server, served
from tests.support.patience import JOB_SECONDS

pytestmark = pytest.mark.process


@pytest.mark.requirement("K7")
def test_a_cut_network_is_told_and_mends_by_itself(images: Images, workshop: Lab) -> None:
    """Calls fail within a time limit; a staged upload is finished later; nothing is duplicated."""
    network = workshop.network()
    engine = Engine(images.engine, network, volume=workshop.volume(), KB_EMBEDDER="hash")
    server = Server(images.server, network, REQUEST_TIMEOUT="3000")
    workshop.ready(engine, server)
    caller = server.caller()
    before = caller.ok("kb_addnote", text="before the cut", wait_seconds=JOB_SECONDS)
    data = b"# Tide\n\nStaged while the engine was away.\n"
    with engine.cut_off():
        for tool, arguments in (("kb_search", {"query": "cut"}), ("kb_addnote", {"text": "during the cut"})):
            assert caller.refused(tool, **arguments)["error"] in {"engine_unreachable", "engine_timeout"}
        assert server.answer("/healthz") == 200
        start = caller.ok("kb_upload_start", filename="tide.md", total_size=len(data))
        chunk = base64.b64encode(data).decode()
        caller.ok("kb_upload_chunk", upload_id=start["upload_id"], chunk_index=0, data=chunk)
        assert caller.refused("kb_upload_finish", upload_id=start["upload_id"])["error"].startswith("engine_")

    mended = served(caller, "kb_upload_finish", upload_id=start["upload_id"])
    job = mended["structuredContent"]["job_id"]
    caller.ok("kb_jobs", job_id=job, wait_seconds=JOB_SECONDS)
    again = caller.ok("kb_addnote", text="during the cut", wait_seconds=JOB_SECONDS)
    assert before["document_id"] != again["document_id"]
    found = caller.ok("kb_search", query="cut staged engine away", top=10, mode="fts")["results"]
    documents = Counter(result.get("title", result["text"]) for result in found)
    assert documents == {"before the cut": 1, "during the cut": 1, "Tide": 1}
