"""Files of uploads in this engine's folders, and refusals before the body was read."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from kb_verify.files import END, MULTIPART, field_part, file_part, part
from kb_verify.suite.test_uploads import BODIES
from tests.contract.conftest import HELD_LONG, Raw, Start
from tests.support.engine_http import Caller, Json, answered, problem
from tests.support.eventually import eventually_async
from tests.support.patience import ANSWER_SECONDS


async def post(kb: Caller, body: bytes) -> httpx.Response:
    return await kb.http.post("/api/v1/jobs", content=body, headers=MULTIPART)


def spooled(home: Path) -> list[str]:
    return [path.name for path in (home / "engine" / "spool").iterdir()]


async def test_an_unknown_kind_of_file_is_refused_before_it_is_sent(kb: Caller, tmp_path: Path) -> None:
    """The rest of the body is not read."""
    async with Raw(kb.http.base_url.port) as raw, asyncio.timeout(ANSWER_SECONDS):
        await raw.begin(1_000_000)
        await raw.write(file_part(b"MZ", "setup.exe"))
        assert b" 415 " in await raw.reader.readline()
    assert spooled(tmp_path) == []


async def test_a_file_that_cannot_be_read_is_kept_so_that_its_job_can_be_tried_again(
    kb: Caller, tmp_path: Path
) -> None:
    ended = await kb.ended(await kb.send("a.txt", b"\xff\xff\xff"))
    assert ended["status"] == "failed"
    assert spooled(tmp_path) == [ended["id"]]
    assert (await kb.status())["storage"]["failed_bytes"] == 3


async def test_a_file_over_the_limit_is_refused(start: Start, tmp_path: Path) -> None:
    """A file of exactly the limit is accepted."""
    kb = await start(max_upload_bytes=1000)
    await kb.file("a.txt", b"x" * 1000)
    for size in (1001, 10_000_000):
        response = await post(kb, file_part(b"x" * size) + END)
        assert "1000" in problem(response, "payload_too_large")["detail"]
    declared = "Content-Type: text/plain; charset=windows-1252\r\n"
    grown = part('form-data; name="file"; filename="a.txt"', "€".encode("cp1252") * 900, header=declared)
    problem(await post(kb, grown + END), "payload_too_large")  # 2,700 bytes in UTF-8
    assert spooled(tmp_path) == []


async def test_a_filename_never_becomes_a_path(kb: Caller, tmp_path: Path) -> None:
    """The file is stored in the spool under the job's id."""
    before = {path for path in tmp_path.rglob("*") if "spool" not in path.parts}
    await kb.file("../../etc/passwd.txt", b"granite")
    after = {path for path in tmp_path.rglob("*") if "spool" not in path.parts}
    assert {path.name for path in after - before} <= {"kb.sqlite-wal", "kb.sqlite-shm"}


FIELD_X = 'form-data; name="x"'
FURTHER_BODIES = {
    "giant field": (file_part() + field_part("title", b"x" * 300_000) + END, "payload_too_large"),
    "charset": (field_part("_charset_", b"x" * 64) + file_part() + END, "invalid_request"),
    "giant header": (part(FIELD_X, b"", header="X: " + "y" * 20_000 + "\r\n") + END, "invalid_request"),
    "header without colon": (part(FIELD_X, b"", header="no colon\r\n") + END, "invalid_request"),
    "many parts": (b"".join(field_part(f"x{n}", b"") for n in range(40)) + END, "invalid_request"),
    "nested": (
        part(FIELD_X, b"", header="Content-Type: multipart/mixed; boundary=y\r\n") + END,
        "invalid_request",
    ),
}
"""Bodies that the contract does not define; this engine refuses them too."""


async def test_a_body_that_does_not_fit_is_refused(
    kb: Caller, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    for name, (body, code) in (BODIES | FURTHER_BODIES).items():
        with subtests.test(body=name):
            problem(await post(kb, body), code)
            assert spooled(tmp_path) == []
            assert answered(await kb.http.get("/api/v1/jobs"))["total"] == 0


async def test_an_upload_cut_off_leaves_nothing(kb: Caller, tmp_path: Path) -> None:
    async with Raw(kb.http.base_url.port) as raw:
        await raw.begin(1_000_000)
        await raw.write(file_part(b"x" * 300_000))
        await eventually_async(lambda: spooled(tmp_path), what="the file in the spool")
    await eventually_async(lambda: not spooled(tmp_path), what="an empty spool")


async def hold(kb: Caller) -> None:
    """Let the caller's next files wait in the queue."""
    for number in range(2):
        await kb.submit(f"{number} {HELD_LONG}")


@pytest.mark.usefixtures("embedder")
async def test_a_cancelled_upload_leaves_the_spool(kb: Caller, tmp_path: Path) -> None:
    await hold(kb)
    job: Json = await kb.send("a.txt", b"granite")
    assert spooled(tmp_path) == [job["id"]]
    await kb.http.delete(f"/api/v1/jobs/{job['id']}")
    assert spooled(tmp_path) == []


@pytest.mark.usefixtures("embedder")
async def test_clearing_leaves_the_spool_empty(kb: Caller, tmp_path: Path) -> None:
    await hold(kb)
    for number in range(3):
        await kb.send(f"{number}.txt", b"granite")
    removed: Any = answered(await kb.http.delete("/api/v1/documents", params={"confirm": "true"}))
    assert removed["jobs_cancelled"] == 5
    assert spooled(tmp_path) == []
