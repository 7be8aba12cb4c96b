"""Uploads on a real disk, towards a simulated engine, for the tests of what they do."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kb_server.uploads.service import _SPARE_BYTES, Limits, Uploads
from kb_server.uploads.staging import Staging
from kb_server.uploads.upload import NewUpload
from tests.support.server_fixtures import JumpingClock, ManualClock
from tests.support.simulated_engine import InterruptedEngine, SimulatedEngine, simulated_engine

LIMITS = Limits(file_bytes=1_000, staging_bytes=2_000, share_bytes=1_500, seconds=600.0)


@dataclass
class Desk:
    uploads: Uploads
    engine: SimulatedEngine
    clock: ManualClock
    home: Path
    client: InterruptedEngine

    def files(self) -> list[str]:
        return sorted(path.name for path in self.home.rglob("*") if path.is_file() and path.stat().st_size)

    def ids(self) -> list[str]:
        return self.uploads._staging.ids()

    async def start(self, size: int = 6, caller: str = "me", **members: Any) -> str:
        new = NewUpload(
            **{
                "filename": "a.txt",
                "total_size": size,
                "tags": ["collection:documents", "insurance"],
                "collection": "collection:documents",
                **members,
            }
        )
        return (await self.uploads.start(new, caller)).upload.id

    async def send(self, upload_id: str, *chunks: bytes) -> None:
        for index, data in enumerate(chunks):
            await self.uploads.chunk(upload_id, index, encoded(data))


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def free_bytes(_: Staging) -> int:
        return _SPARE_BYTES + 900 - sum(path.stat().st_size for path in tmp_path.rglob("chunk-*"))

    monkeypatch.setattr(Staging, "free_bytes", free_bytes)


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    clock = ManualClock()
    async with simulated_engine() as engine:
        client = InterruptedEngine(engine.url, clock=JumpingClock().clock())
        uploads = Uploads(tmp_path, "one", LIMITS, client, clock.clock())
        yield Desk(uploads, engine, clock, tmp_path, client)
        await uploads.close()
        await client.close()
