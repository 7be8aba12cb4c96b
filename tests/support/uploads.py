"""Uploads on a real disk to a simulated engine, for tests of their behaviour."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from kb_server.uploads.service import _SPARE_BYTES, Limits, Uploads
from kb_server.uploads.staging import Staging
from kb_server.uploads.upload import NewUpload, Upload
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

    async def start(self, size: int | None = 6, caller: str = "me", **members: Any) -> str:
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

    async def sent(self, *chunks: bytes, caller: str = "me") -> str:
        upload_id = await self.start(sum(map(len, chunks)), caller)
        await self.send(upload_id, *chunks)
        return upload_id

    @asynccontextmanager
    async def another(self, instance: str = "two", limits: Limits = LIMITS) -> AsyncIterator[Desk]:
        """Yield another server on the same data folder, or another worker of this server."""
        uploads = Uploads(self.home, instance, limits, self.client, self.clock.clock())
        try:
            yield replace(self, uploads=uploads)
        finally:
            await uploads.close()


def upload(**members: Any) -> Upload:
    return Upload(
        **{
            "id": "8b4e8f0e-9d1c-4c53-9c1a-5f2f6f0c9d11",
            "filename": "a.txt",
            "total_size": 10,
            "tags": ["collection:documents"],
            "collection": "collection:documents",
            "deadline": 0.0,
            "expires_at": "2026-01-01T00:10:00Z",
            "caller": "me",
            "owner": "anonymous",
            "token_sha256": "",
            **members,
        }
    )


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
