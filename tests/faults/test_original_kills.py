"""The engine killed while it stores files: each document has its complete file, without orphans."""

from __future__ import annotations

import hashlib
import random
import threading
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from tests.faults.engine_process import Running, running
from tests.support.patience import ANSWER_SECONDS

pytestmark = pytest.mark.process

KILLS = 5


def exchange(engine: Running, number: int, sent: threading.Semaphore) -> None:
    """Send files, counted by `sent`, and permanently remove documents until the engine is killed."""
    with suppress(httpx.HTTPError, AssertionError):
        for each in range(1_000):
            # Each content twice, so that some are shared.
            data = f"granite {number} {each // 2} ".encode() * 200
            engine.post("/jobs", files={"file": (f"{each}.txt", data)}, data={"dedup_scope": f"{each % 2}"})
            sent.release()
            if each % 5 == 4:
                listed = engine.get("/documents", limit=1)["documents"]
                for document in listed:
                    engine.http.delete(f"/api/v1/documents/{document['id']}", params={"purge": "true"})


def test_a_kept_file_is_whole_or_not_there(tmp_path: Path) -> None:
    settings = {"KB_KEEP_ORIGINALS": "true", "KB_INGEST_WORKERS": "1"}
    for number in range(KILLS):
        engine = Running(tmp_path, **settings)
        sent = threading.Semaphore(0)
        sender = threading.Thread(target=exchange, args=(engine, number, sent))
        sender.start()
        for _ in range(random.Random(number).randrange(5, 25)):
            assert sent.acquire(timeout=ANSWER_SECONDS)
        engine.kill()
        sender.join()
    with running(tmp_path, **settings) as again:
        again.all_ended()
        hashes = set()
        listed = again.get("/documents", limit=1000)
        assert listed["total"] == len(listed["documents"]) > KILLS
        for document in listed["documents"]:
            assert document["original"] is True
            found = again.http.get(f"/api/v1/documents/{document['id']}/original")
            assert hashlib.sha256(found.content).hexdigest() == document["sha256"]
            hashes.add(document["sha256"])
        folder = tmp_path / "engine" / "kb.sqlite.originals"
        assert {path.name for path in folder.iterdir()} == hashes
        kept = again.get("/status")["storage"]["kept_originals_bytes"]
        assert kept == sum(path.stat().st_size for path in folder.iterdir())
        assert [*(tmp_path / "engine" / "spool").iterdir()] == []
