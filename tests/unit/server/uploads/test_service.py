"""Uploads from start to finish, on a real disk with a simulated engine."""

from __future__ import annotations

import asyncio
import base64
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from kb_server.engine_client.errors import EngineFailed, EngineUnreachable
from kb_server.uploads.service import _SPARE_BYTES, IDLE_SECONDS, TOKEN_BYTES, Limits, Uploads
from kb_server.uploads.staging import Entry, Lock
from kb_server.uploads.upload import CHUNK_BYTES, End, NewUpload, UploadError
from tests.support.eventually import eventually_async
from tests.support.patience import ANSWER_SECONDS
from tests.support.server_fixtures import JumpingClock
from tests.support.simulated_engine import InterruptedEngine, MakeCall
from tests.support.uploads import LIMITS, Desk, encoded, sha256

UNKNOWN = "8b4e8f0e-9d1c-4c53-9c1a-5f2f6f0c9d11"


class TestStart:
    @pytest.mark.requirement("K31")
    async def test_an_upload_has_a_uuid_and_a_staging_entry(self, desk: Desk) -> None:
        new = NewUpload("a.txt", 6, ["collection:documents"], "collection:documents")
        started = await desk.uploads.start(new, "me")
        assert UUID(started.upload.id).version == 4
        assert (desk.home / "staging" / "one" / started.upload.id).is_dir()
        assert started.upload.expires_at == "2026-01-01T00:10:00Z"
        assert len(base64.urlsafe_b64decode(started.token + "==")) == TOKEN_BYTES == 32

    @pytest.mark.parametrize(
        ("size", "code", "words"),
        [
            (0, "invalid_parameter", "at least 1"),
            (-1, "invalid_parameter", "at least 1"),
            (1_001, "upload_too_large", "1001 bytes; at most 1000"),
        ],
    )
    async def test_a_file_has_a_byte_and_no_more_than_the_limit(
        self, desk: Desk, size: int, code: str, words: str
    ) -> None:
        with pytest.raises(UploadError, match=words) as refused:
            await desk.start(size)
        assert refused.value.code == code

    async def test_announced_uploads_without_bytes_take_no_room(self, desk: Desk) -> None:
        for _ in range(10):
            await desk.start(1_000)
        await desk.sent(bytes(1_000), caller="somebody else")

    async def test_bytes_that_have_arrived_fill_the_quota(self, desk: Desk) -> None:
        for caller in ("one", "two"):
            await desk.sent(bytes(1_000), caller=caller)
        with pytest.raises(UploadError, match="room for 0 more") as refused:
            await desk.start(1, caller="three")
        assert refused.value.code == "staging_full"

    async def test_a_caller_fills_its_own_share_and_no_other(self, desk: Desk) -> None:
        await desk.sent(bytes(1_000))
        with pytest.raises(UploadError, match="of 1500 bytes 500 are free") as refused:
            await desk.start(501)
        assert (refused.value.code, refused.value.details["free_bytes"]) == ("share_full", 500)
        await desk.sent(bytes(501), caller="somebody else")

    @pytest.mark.usefixtures("full_disk")
    async def test_a_nearly_full_disk_is_named_where_no_upload_is_open(self, desk: Desk) -> None:
        with pytest.raises(UploadError, match="room for 900 more") as refused:
            await desk.start(901)
        assert f"on the disk {_SPARE_BYTES} are kept free" in refused.value.message
        assert "Finish an open upload" not in refused.value.message

    @pytest.mark.usefixtures("full_disk")
    async def test_a_nearly_full_disk_is_not_written_full(self, desk: Desk) -> None:
        """Received bytes are already used space, and are not subtracted again."""
        first, second = await desk.start(600), await desk.start(301)
        await desk.send(first, bytes(600))
        with pytest.raises(UploadError, match="room for 300 more") as refused:
            await desk.send(second, bytes(301))
        assert refused.value.code == "staging_full"
        await desk.sent(bytes(300))

    @pytest.mark.usefixtures("full_disk")
    async def test_an_upload_that_is_done_keeps_no_room(self, desk: Desk) -> None:
        """It uses neither the disk's 900 bytes nor the caller's share."""
        await desk.uploads.finish(await desk.sent(bytes(700)))
        await desk.start(900)

    async def test_room_comes_back_with_time(self, desk: Desk) -> None:
        await desk.sent(bytes(1_000))
        desk.clock.seconds += 600
        await desk.uploads.sweep()
        await desk.sent(bytes(1_000))

    async def test_a_caller_has_a_bounded_number_of_open_uploads(self, desk: Desk) -> None:
        """Expired uploads are not counted."""
        async with desk.another(limits=replace(LIMITS, open_uploads=2)) as bounded:
            await bounded.start(1)
            await bounded.start(1)
            with pytest.raises(UploadError, match="at most 2") as refused:
                await bounded.start(1)
            assert refused.value.code == "too_many_uploads"
            await bounded.start(1, caller="somebody else")
            desk.clock.seconds += 600
            await bounded.start(1)

    async def test_an_upload_without_a_byte_gives_way_where_callers_share_their_places(
        self, desk: Desk
    ) -> None:
        """Without keys all clients of an address do. Uploads with bytes, and those of a key, stay."""
        async with desk.another(limits=replace(LIMITS, open_uploads=2)) as bounded:
            idle, begun = await bounded.start(1), await bounded.start(2)
            await bounded.uploads.chunk(begun, 0, "YQ==")
            desk.clock.seconds += IDLE_SECONDS - 1
            with pytest.raises(UploadError, match="at most 2"):
                await bounded.start(1)
            desk.clock.seconds += 1
            new = await bounded.start(1)
            with pytest.raises(UploadError, match="was not found"):
                await bounded.uploads.abort(idle)
            with pytest.raises(UploadError, match="at most 2"):
                await bounded.start(1)
            await bounded.uploads.abort(begun)
            await bounded.uploads.abort(new)

    async def test_an_idle_upload_of_a_key_keeps_its_place(self, desk: Desk) -> None:
        async with desk.another(limits=replace(LIMITS, open_uploads=1)) as bounded:
            new = NewUpload("a.pdf", 1, ["collection:documents"], "collection:documents")
            await bounded.uploads.start(new, "news", owner="news")
            desk.clock.seconds += IDLE_SECONDS
            with pytest.raises(UploadError, match="at most 1"):
                await bounded.uploads.start(new, "news", owner="news")

    async def test_a_data_folder_that_cannot_be_written_is_told(self, tmp_path: Path, desk: Desk) -> None:
        (tmp_path / "file").write_text("in the way")
        uploads = Uploads(tmp_path / "file", "one", LIMITS, desk.client, desk.clock.clock())
        with pytest.raises(UploadError, match="KB_HOME") as refused:
            await replace(desk, uploads=uploads).start()
        assert refused.value.code == "staging_failed"


class TestChunk:
    @pytest.mark.requirement("K33", "K34", "E5")
    async def test_chunks_are_decoded_stored_and_counted(self, desk: Desk) -> None:
        upload_id = await desk.start(6)
        assert (await desk.uploads.chunk(upload_id, 0, encoded(b"abc"))).bytes == 3
        received = await desk.uploads.chunk(upload_id, 1, encoded(b"def"))
        assert (received.bytes, received.chunks, received.total_size) == (6, 2, 6)
        folder = desk.home / "staging" / "one" / upload_id
        assert [(folder / f"chunk-{index}").read_bytes() for index in (0, 1)] == [b"abc", b"def"]

    async def test_the_same_index_again_replaces(self, desk: Desk) -> None:
        upload_id = await desk.start(6)
        await desk.send(upload_id, b"xxx", b"def")
        received = await desk.uploads.chunk(upload_id, 0, encoded(b"abc"))
        assert (received.bytes, received.chunks) == (6, 2)
        await desk.uploads.finish(upload_id)
        assert desk.engine.journal.files() == [sha256(b"abcdef")]

    @pytest.mark.parametrize(
        "data",
        [
            "YW!j", "YWJ", "YWJj\n", "YW Jj", "é", "data:text/plain;base64,YWJj", "YW-_", "=YWJ", "YWJj=",
            "YWJj====", "\ud800",
        ],
    )  # fmt: skip
    async def test_a_chunk_that_is_not_strict_base64_is_refused_and_not_stored(
        self, desk: Desk, data: str
    ) -> None:
        """A lenient decoder would store a different file."""
        upload_id = await desk.start(6)
        before = desk.files()
        with pytest.raises(UploadError, match="strict base64") as refused:
            await desk.uploads.chunk(upload_id, 0, data)
        assert refused.value.code == "invalid_base64"
        assert desk.files() == before

    async def test_a_chunk_of_the_greatest_length_is_stored(self, desk: Desk) -> None:
        async with desk.another(limits=Limits(CHUNK_BYTES, 1 << 25, 1 << 25, 600.0)) as big:
            upload_id = await big.start(CHUNK_BYTES)
            received = await big.uploads.chunk(upload_id, 0, encoded(bytes(CHUNK_BYTES)))
        assert received.bytes == CHUNK_BYTES

    async def test_a_chunk_that_is_far_too_long_is_refused_before_it_is_decoded(self, desk: Desk) -> None:
        upload_id = await desk.start(6)
        with pytest.raises(UploadError, match=str(CHUNK_BYTES)) as refused:
            await desk.uploads.chunk(upload_id, 0, "!" * (CHUNK_BYTES * 4 // 3 + 100))
        assert refused.value.code == "chunk_too_large"

    async def test_a_chunks_sha256_is_checked(self, desk: Desk) -> None:
        """A model that writes base64 by hand makes mistakes."""
        upload_id = await desk.start(3)
        with pytest.raises(UploadError, match="SHA-256 of chunk 0") as refused:
            await desk.uploads.chunk(upload_id, 0, encoded(b"abd"), sha256(b"abc"))
        assert refused.value.code == "sha256_mismatch"
        await desk.uploads.chunk(upload_id, 0, encoded(b"abc"), sha256(b"abc").upper())

    @pytest.mark.requirement("K35")
    async def test_chunks_sent_together_are_put_together_by_their_index(self, desk: Desk) -> None:
        upload_id = await desk.start(20)
        chunks = [desk.uploads.chunk(upload_id, index, encoded(bytes([index]))) for index in range(20)]
        await asyncio.gather(*reversed(chunks))
        await desk.uploads.finish(upload_id)
        assert desk.engine.journal.files() == [sha256(bytes(range(20)))]

    async def test_together_they_never_exceed_the_total(self, desk: Desk) -> None:
        upload_id = await desk.start(6)
        chunks = [desk.uploads.chunk(upload_id, index, encoded(b"abc")) for index in range(5)]
        outcomes = await asyncio.gather(*chunks, return_exceptions=True)
        assert sum(isinstance(outcome, UploadError) for outcome in outcomes) == 3

    async def test_of_chunks_that_arrive_at_once_only_those_with_room_are_taken(self, desk: Desk) -> None:
        started = [await desk.start(1_000, caller=str(number)) for number in range(5)]
        outcomes = await asyncio.gather(
            *(desk.send(each, bytes(1_000)) for each in started), return_exceptions=True
        )
        refused = [each for each in outcomes if isinstance(each, UploadError)]
        assert [each.code for each in refused] == ["staging_full"] * 3
        for upload_id, outcome in zip(started, outcomes, strict=True):
            if outcome is None:
                await desk.uploads.finish(upload_id)
        again = started[outcomes.index(refused[0])]
        await desk.send(again, bytes(1_000))
        await desk.uploads.finish(again)

    async def test_a_chunk_that_is_replaced_holds_no_more_than_its_size(self, desk: Desk) -> None:
        upload_id = await desk.start(1_000)
        for _ in range(3):
            await desk.send(upload_id, bytes(1_000))
        await desk.start(500)

    async def test_chunks_of_a_file_of_unknown_size_hold_quota_as_they_arrive(self, desk: Desk) -> None:
        upload_id = await desk.start(None)
        received = await desk.uploads.chunk(upload_id, 0, encoded(bytes(900)))
        assert (received.bytes, received.total_size) == (900, None)
        with pytest.raises(UploadError, match="of 1500 bytes 600 are free"):
            await desk.start(601)
        with pytest.raises(UploadError, match="1001 bytes; at most 1000") as refused:
            await desk.uploads.chunk(upload_id, 1, encoded(bytes(101)))
        assert refused.value.code == "upload_too_large"
        await desk.sent(bytes(600))
        with pytest.raises(UploadError, match="of 1500 bytes 0 are free"):
            await desk.uploads.chunk(upload_id, 1, encoded(b"a"))
        with pytest.raises(UploadError, match="of 1500 bytes 0 are free"):
            await desk.start(None)

    async def test_a_caller_that_leaves_does_not_block_the_next(self, desk: Desk) -> None:
        upload_id = await desk.start(6)
        task = asyncio.create_task(desk.uploads.chunk(upload_id, 0, encoded(b"abc")))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await desk.send(upload_id, b"abc", b"def")
        await desk.uploads.finish(upload_id)
        assert desk.engine.journal.files() == [sha256(b"abcdef")]


class TestFinish:
    @pytest.mark.requirement("K35", "K36", "K37", "K38", "E6")
    async def test_the_file_goes_to_the_engine_whole_with_the_starts_tags(self, desk: Desk) -> None:
        upload_id = await desk.start(6, filename="report.pdf", title="R", source_path="p", metadata={"a": 1})
        await desk.send(upload_id, b"abc", b"def")
        finished = await desk.uploads.finish(upload_id)
        (request,) = desk.engine.journal.requests("createJob")
        assert (request.method, request.path) == ("POST", "/api/v1/jobs")
        assert request.headers["Content-Type"].startswith("multipart/form-data")
        assert request.headers["Idempotency-Key"] == upload_id
        assert desk.engine.journal.bodies("createJob") == [
            {
                "file": ["report.pdf", sha256(b"abcdef")],
                "tags": ["collection:documents", "insurance"],
                "dedup_scope": "collection:documents",
                "title": "R",
                "source_path": "p",
                "metadata": {"a": 1},
                "force_ocr": False,
            }
        ]
        assert finished.job_id in desk.engine.state.jobs

    @pytest.mark.requirement("K39", "K40")
    async def test_an_unknown_upload_is_not_found(self, desk: Desk) -> None:
        for call in (desk.uploads.chunk(UNKNOWN, 0, encoded(b"abc")), desk.uploads.finish(UNKNOWN)):
            with pytest.raises(UploadError, match=r"was not found.*kb_upload_start") as refused:
                await call
            assert refused.value.payload()["error"] == "upload_not_found"

    async def test_a_gap_is_named_and_can_be_filled(self, desk: Desk) -> None:
        upload_id = await desk.start(9)
        for index in (0, 2):
            await desk.uploads.chunk(upload_id, index, encoded(b"abc"))
        with pytest.raises(UploadError, match="missing: 1"):
            await desk.uploads.finish(upload_id)
        assert desk.engine.journal.requests() == []
        await desk.uploads.chunk(upload_id, 1, encoded(b"xyz"))
        await desk.uploads.finish(upload_id)
        assert desk.engine.journal.files() == [sha256(b"abcxyzabc")]

    async def test_the_files_sha256_is_checked(self, desk: Desk) -> None:
        upload_id = await desk.start(6, sha256=sha256(b"abcdef"))
        await desk.send(upload_id, b"abc", b"xyz")
        with pytest.raises(UploadError, match="SHA-256 of the file"):
            await desk.uploads.finish(upload_id)
        await desk.uploads.chunk(upload_id, 1, encoded(b"def"))
        with pytest.raises(UploadError, match="SHA-256 of the file"):
            await desk.uploads.finish(upload_id, End(sha256=sha256(b"another")))
        await desk.uploads.finish(upload_id, End(sha256=sha256(b"abcdef")))
        assert desk.engine.journal.files() == [sha256(b"abcdef")]

    @pytest.mark.parametrize(
        "end", [End(total_size=6), End(sha256=sha256(b"abcdef")), End(chunks=2), End(6, sha256(b"abcdef"), 2)]
    )
    async def test_a_file_of_unknown_size_is_whole_where_the_finish_says_so(
        self, desk: Desk, end: End
    ) -> None:
        upload_id = await desk.start(None)
        await desk.send(upload_id, b"abc", b"def")
        with pytest.raises(UploadError, match="total_size, sha256 or chunks"):
            await desk.uploads.finish(upload_id)
        await desk.uploads.finish(upload_id, end)
        assert desk.engine.journal.files() == [sha256(b"abcdef")]

    @pytest.mark.requirement("K41")
    async def test_repeated_it_gives_the_same_job_though_the_bytes_are_gone(self, desk: Desk) -> None:
        upload_id = await desk.sent(b"abc")
        first = await desk.uploads.finish(upload_id)
        assert not [name for name in desk.files() if name.startswith("chunk")]
        again = await desk.uploads.finish(upload_id)
        assert again.job_id == first.job_id
        desk.engine.journal.expect(operation="createJob", exactly=1)

    async def test_a_failure_of_the_engine_keeps_the_file_for_another_try(self, desk: Desk) -> None:
        upload_id = await desk.sent(b"abc")
        desk.engine.arm("internal_error", "createJob")
        with pytest.raises(EngineFailed):
            await desk.uploads.finish(upload_id)
        await desk.uploads.finish(upload_id)
        assert desk.engine.journal.files() == [sha256(b"abc"), sha256(b"abc")]

    async def test_an_engine_out_of_reach_keeps_the_file_too(self, desk: Desk) -> None:
        client = InterruptedEngine("http://127.0.0.1:1", clock=JumpingClock().clock())
        async with replace(desk, client=client).another() as away:
            upload_id = await away.sent(b"abc")
            with pytest.raises(EngineUnreachable):
                await away.uploads.finish(upload_id)
            assert "chunk-0" in desk.files()
        await client.close()

    async def test_while_finishing_chunks_and_finishes_are_refused(self, desk: Desk) -> None:
        upload_id = await desk.sent(b"abc")
        arrived, go_on = asyncio.Event(), asyncio.Event()

        async def holds(send: MakeCall) -> Any:
            arrived.set()
            await go_on.wait()
            return await send()

        desk.client.around["createJob"] = holds
        finishing = asyncio.create_task(desk.uploads.finish(upload_id))
        await arrived.wait()
        for call in (desk.uploads.chunk(upload_id, 0, encoded(b"xyz")), desk.uploads.finish(upload_id)):
            with pytest.raises(UploadError) as refused:
                await call
            assert refused.value.code == "upload_finishing"
        desk.clock.advance(601)
        await desk.uploads.sweep()
        assert desk.ids() == [upload_id]
        go_on.set()
        assert (await finishing).job_id in desk.engine.state.jobs
        await desk.uploads.sweep()
        assert desk.ids() == []

    async def test_a_caller_that_leaves_while_finishing_leaves_it_open(self, desk: Desk) -> None:
        upload_id = await desk.sent(b"abc")
        desk.engine.arm("hang", "createJob")
        finishing = asyncio.create_task(desk.uploads.finish(upload_id))
        await eventually_async(lambda: desk.engine.journal.requests("createJob"), what="the file's arrival")
        finishing.cancel()
        await asyncio.gather(finishing, return_exceptions=True)
        assert (await desk.uploads.finish(upload_id)).job_id in desk.engine.state.jobs

    async def test_a_caller_that_leaves_while_a_lock_is_taken_leaves_no_lock(
        self, desk: Desk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The call waits for the locking thread, and the lock is released again."""
        upload_id = await desk.sent(b"abc")
        loop, taking, go_on = asyncio.get_running_loop(), asyncio.Event(), threading.Event()
        hold = Entry.hold_finishing

        def slowly(entry: Entry, lock: Lock) -> bool:
            loop.call_soon_threadsafe(taking.set)
            go_on.wait(ANSWER_SECONDS)
            return hold(entry, lock)

        with monkeypatch.context() as patched:
            patched.setattr(Entry, "hold_finishing", slowly)
            finishing = asyncio.create_task(desk.uploads.finish(upload_id))
            await taking.wait()
            finishing.cancel()
            loop.call_soon(go_on.set)
            await asyncio.gather(finishing, return_exceptions=True)
        assert (await desk.uploads.finish(upload_id)).job_id in desk.engine.state.jobs

    async def test_a_large_file_is_streamed_in_blocks(self, desk: Desk) -> None:
        data = b"".join(index.to_bytes(4, "big") for index in range(700_000))
        async with desk.another(limits=Limits(1 << 24, 1 << 25, 1 << 25, 600.0)) as big:
            upload_id = await big.sent(data[:2_000_000], data[2_000_000:])
            await big.uploads.finish(upload_id, End(sha256=sha256(data)))
        assert desk.engine.journal.files() == [sha256(data)]


class TestAbort:
    async def test_an_aborted_upload_leaves_no_files(self, desk: Desk) -> None:
        upload_id = await desk.start(1_000)
        await desk.send(upload_id, bytes(900))
        assert (await desk.uploads.abort(upload_id)).id == upload_id
        assert (desk.files(), desk.ids()) == ([], [])
        for call in (desk.uploads.abort, desk.uploads.finish):
            with pytest.raises(UploadError) as refused:
                await call(upload_id)
            assert refused.value.code == "upload_not_found"
        await desk.sent(bytes(1_000))

    async def test_a_file_that_the_engine_has_cannot_be_aborted(self, desk: Desk) -> None:
        upload_id = await desk.sent(b"abc")
        finished = await desk.uploads.finish(upload_id)
        with pytest.raises(UploadError) as refused:
            await desk.uploads.abort(upload_id)
        assert refused.value.code == "upload_done"
        assert (await desk.uploads.finish(upload_id)).job_id == finished.job_id
