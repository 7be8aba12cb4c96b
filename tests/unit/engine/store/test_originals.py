"""Originals: one file for each content, kept as long as a document uses it, across crashes."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET

from kb_contracts.api import models as m
from kb_contracts.api.errors import EngineError
from kb_engine.spool import FolderSpool, Spool
from kb_engine.store.port import Bounds
from kb_engine.store.repository import arrivals, documents, jobs, state, versions
from kb_engine.store.sqlite.originals import OriginalFolder, originals_of
from tests.support.stores import Base, Place, TestClock, died, digest, new_file, opened, prepared, refused

KEEPING = Bounds(originals=True)


@asynccontextmanager
async def keeping(
    place: Place, folder: Path, clock: TestClock | None = None, bounds: Bounds = KEEPING
) -> AsyncIterator[Filled]:
    (folder / "spool").mkdir(exist_ok=True, parents=True)
    async with opened(place, clock, bounds=bounds) as base:
        is_folder = isinstance(place, Path)
        spool: Spool = FolderSpool(folder / "spool") if is_folder else base.store.spool(folder / "spool")
        yield Filled(base, spool)


class Filled:
    def __init__(self, base: Base, spool: Spool) -> None:
        self.base = base
        self.spool = spool

    async def add(self, text: str, **changes: Any) -> m.Document:
        """Send a file and ingest it, as the API and a worker do."""
        job = new_file(text, **{"spool": f"job of {os.urandom(4).hex()}", **changes})
        assert job.spool is not None
        async with self.spool.receive(job.spool) as file:
            await file.write(text.encode())
        done = await self.base.ingest(job, prepared(text))
        await self.spool.remove(job.spool)
        assert done.document_id is not None
        return await self.base.detail(done.document_id)

    async def content(self, text: str) -> bytes:
        return b"".join([block async for block in self.base.store.original(digest(text))])

    async def kept(self, *texts: str) -> list[bool]:
        """Return which of these are kept; also check that there is no other row or file."""
        found = []
        for text in texts:
            try:
                assert await self.content(text) == text.encode()
                found.append(True)
            except EngineError as error:
                if error.code != "original_not_kept":
                    raise
                found.append(False)
        counts = await self.base.store.read(state.counts)
        sizes = [len(text.encode()) * is_kept for text, is_kept in zip(texts, found, strict=True)]
        assert counts.kept_originals_bytes == sum(sizes)
        if isinstance(self.base.place, Path):
            folder = originals_of(self.base.place)
            names = {path.name for path in folder.iterdir()} if folder.exists() else set()
            assert len(names) == sum(found)
        else:
            assert await self.base.count("spool_files") == sum(found)
        return found

    async def gone(self, document: m.Document, **options: Any) -> None:
        await self.base.store.write(documents.delete, document.id, **options)


async def test_a_file_is_kept_once_and_goes_with_the_last_that_has_it(place: Place, tmp_path: Path) -> None:
    async with keeping(place, tmp_path) as filled:
        first, second = [await filled.add("granite", dedup_scope=scope) for scope in "ab"]
        assert (first.id != second.id, first.original, second.original) == (True, True, True)
        assert await filled.kept("granite") == [True]
        await filled.gone(first, purge=True)
        assert await filled.kept("granite") == [True]
        await filled.gone(second, purge=True)
        assert await filled.kept("granite") == [False]


async def test_without_the_setting_no_original_is_kept(place: Place, tmp_path: Path) -> None:
    async with keeping(place, tmp_path, bounds=Bounds()) as filled:
        assert not (await filled.add("granite")).original
        assert await filled.kept("granite") == [False]


async def test_the_oldest_files_are_dropped_over_the_bound(place: Place, tmp_path: Path) -> None:
    bounds = Bounds(originals=True, originals_bytes=50)
    async with keeping(place, tmp_path, bounds=bounds) as filled:
        texts = [text * 16 for text in "cab"]
        for text in texts:
            await filled.add(text)
        assert await filled.kept(*texts) == [True, True, True]
        texts += ["d" * 16, "e" * 51]
        added = [await filled.add(text) for text in texts[3:]]
        assert await filled.kept(*texts) == [False, False, True, True, False]
        assert [each.original for each in added] == [True, UNSET]


async def test_a_base_keeps_the_bound_with_which_it_was_created(tmp_path: Path) -> None:
    unset = Bounds(originals=None)
    bounded = replace(unset, originals_bytes=500)
    for number, (first, later, is_kept) in enumerate(
        [(bounded, unset, True), (unset, bounded, False), (bounded, Bounds(), False), (unset, KEEPING, True)]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        for bounds in (first, later):
            async with keeping(folder / "kb.sqlite", folder, bounds=bounds) as filled:
                document = await filled.add(f"granite {bounds}")
        assert (document.original is True) is is_kept


async def test_resending_a_file_keeps_its_original(place: Place, tmp_path: Path) -> None:
    async with keeping(place, tmp_path, bounds=Bounds()) as filled:
        before = await filled.add("granite")
    async with keeping(place, tmp_path) as filled:
        after = await filled.add("granite")
        assert (after.id, after.original) == (before.id, True)
        assert await filled.kept("granite") == [True]


async def test_a_note_of_the_same_text_has_no_file(place: Place, tmp_path: Path) -> None:
    async with keeping(place, tmp_path) as filled:
        file = await filled.add("granite")
        note = await filled.base.note("granite")
        assert not note.original
        await filled.gone(file, purge=True)
        assert await filled.kept("granite") == [False]


async def test_a_version_and_the_trash_keep_their_file(place: Place, tmp_path: Path) -> None:
    async with keeping(place, tmp_path) as filled:
        old = await filled.add("granite", source_path="/a")
        new = await filled.add("basalt", source_path="/a")
        assert new.id == old.id
        assert await filled.kept("granite", "basalt") == [True, True]
        await filled.base.store.write(arrivals.restore, old.id, old.version, None)
        assert (await filled.base.detail(old.id)).original
        await filled.gone(old)
        assert await filled.kept("granite", "basalt") == [True, True]
        last = await filled.base.store.read(versions.last, old.id)
        await filled.base.store.write(arrivals.restore, old.id, last, None)
        assert (await filled.base.detail(old.id)).original
        await filled.base.store.write(versions.purge, old.id)
        assert await filled.kept("granite", "basalt") == [True, False]


async def test_without_versions_a_replaced_file_goes_at_once(place: Place, tmp_path: Path) -> None:
    async with keeping(place, tmp_path, bounds=Bounds(versions=0, originals=True)) as filled:
        await filled.add("granite", source_path="/a")
        await filled.add("basalt", source_path="/a")
        assert await filled.kept("granite", "basalt") == [False, True]


async def test_an_expired_version_releases_its_original(place: Place, tmp_path: Path) -> None:
    clock = TestClock()
    async with keeping(place, tmp_path, clock, Bounds(version_days=2, originals=True)) as filled:
        await filled.gone(await filled.add("granite"))
        assert await filled.kept("granite") == [True]
        clock.move(days=3)
        await filled.base.store.write(versions.forget_expired)
        assert await filled.kept("granite") == [False]


@pytest.mark.parametrize("operation", [documents.clear, versions.drop_all])
async def test_clearing_documents_or_versions_removes_their_originals(
    place: Place, tmp_path: Path, operation: Callable[..., Any]
) -> None:
    async with keeping(place, tmp_path) as filled:
        await filled.gone(await filled.add("granite"))
        await filled.add("basalt")
        await filled.base.store.write(operation)
        assert await filled.kept("granite", "basalt") == [False, operation is versions.drop_all]


async def test_a_job_that_is_cancelled_or_fails_keeps_nothing_for_documents(
    place: Place, tmp_path: Path
) -> None:
    async with keeping(place, tmp_path) as filled:
        job = new_file("granite", spool="one")
        async with filled.spool.receive("one") as file:
            await file.write(b"granite")
        await filled.base.accept(job)
        await filled.base.store.write(jobs.cancel, job.id)
        await filled.spool.remove("one")
        assert await filled.kept("granite") == [False]


async def test_a_death_leaves_what_was_committed(place: Place, tmp_path: Path) -> None:
    async with keeping(place, tmp_path) as filled:
        await filled.add("granite")
        left = await died(filled.base, tmp_path / "after") if isinstance(place, Path) else None
        if left is not None:
            assert isinstance(left, Path)
            copied = originals_of(left)
            copied.mkdir()
            os.link(originals_of(filled.base.path) / digest("granite"), copied / digest("granite"))
            # A file whose row was not committed, and an incomplete one.
            (copied / digest("basalt")).write_bytes(b"basalt")
            (copied / f"{digest('marble')}.new").write_bytes(b"mar")
    async with keeping(left or place, tmp_path / "again") as filled:
        assert await filled.kept("granite", "basalt", "marble") == [True, False, False]


async def test_two_at_once_do_not_lose_the_file_of_one(place: Place, tmp_path: Path) -> None:
    """One document is removed while another with the same content is added."""
    async with keeping(place, tmp_path) as filled:
        for number in range(10):
            old = await filled.add("granite", dedup_scope=f"old {number}")
            await asyncio.gather(
                filled.gone(old, purge=True), filled.add("granite", dedup_scope=f"new {number}")
            )
            assert await filled.kept("granite") == [True]


# --- the folder of a SQLite base


def test_a_file_that_is_sent_again_takes_the_place_of_a_damaged_one(tmp_path: Path) -> None:
    (tmp_path / "spool").mkdir()
    folder = OriginalFolder(tmp_path / "kb.db", tmp_path / "spool")
    (tmp_path / "spool" / "one").write_bytes(b"granite")
    for _ in range(2):
        folder.take("hash", "one")
    assert [*folder.folder.iterdir()] == [folder.path("hash")]
    folder.path("hash").unlink()
    folder.path("hash").write_bytes(b"grani")
    folder.take("hash", "one")
    assert folder.path("hash").read_bytes() == b"granite"


def test_a_spool_on_another_disk_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_link(*_: object) -> None:
        raise OSError(errno.EXDEV, "another disk")

    monkeypatch.setattr(os, "link", no_link)
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool" / "one").write_bytes(b"granite")
    folder = OriginalFolder(tmp_path / "kb.db", tmp_path / "spool")
    folder.take("hash", "one")
    (tmp_path / "spool" / "one").write_bytes(b"other")
    assert folder.path("hash").read_bytes() == b"granite"
    assert len([*folder.folder.iterdir()]) == 1


async def test_no_room_for_a_copy_fails_the_commit_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    async with keeping(tmp_path / "kb.db", tmp_path) as filled:
        monkeypatch.setattr(os, "link", full)
        monkeypatch.setattr(shutil, "copyfile", full)
        assert (await refused(filled.add("granite"))).code == "storage_full"
        assert await filled.kept("granite") == [False]
        assert await filled.base.count("documents") == 0
