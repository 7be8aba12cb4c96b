"""A file as a response: with a harmless name, and cut off if it is incomplete."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from urllib.parse import unquote

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from hypothesis import given
from hypothesis import strategies as st

from kb_contracts.api.content import FileContent
from kb_http.downloads import content_disposition, file_response


@pytest.mark.parametrize(
    ("name", "plain", "shown"),
    [
        ("report.pdf", "report.pdf", "report.pdf"),
        ("../../etc/passwd", "passwd", "passwd"),
        ("C:\\temp\\a.txt", "a.txt", "a.txt"),
        ('a"; filename="b.exe', "a__ filename=_b.exe", 'a"; filename="b.exe'),
        ("a\r\nSet-Cookie: x=1.txt", "aSet-Cookie_ x=1.txt", "aSet-Cookie: x=1.txt"),
        ("grä.txt", "gr_.txt", "grä.txt"),
        ("txt.\u202eexe", "txt.exe", "txt.exe"),
        ("..", "file", "file"),
        ("\0", "file", "file"),
        ("", "file", "file"),
        ("x" * 500 + ".txt", "x" * 146 + ".txt", "x" * 146 + ".txt"),
    ],
)
def test_a_name_cannot_leave_its_place(name: str, plain: str, shown: str) -> None:
    header = content_disposition(name)
    assert header.startswith(f'attachment; filename="{plain}"; ')
    assert unquote(header.partition("filename*=UTF-8''")[2]) == shown


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_whatever_a_file_is_called_the_header_is_one(name: str) -> None:
    header = content_disposition(name)
    assert header.isascii()
    assert header.isprintable()
    assert header.count('"') == 2
    assert header.count(";") == 2 + header.partition("filename*=")[0][22:].partition('"')[0].count(";")


def content(blocks: Sequence[bytes], size: int) -> FileContent:
    async def generate() -> AsyncGenerator[bytes, None]:
        for block in blocks:
            yield block

    return FileContent(filename="a.txt", size=size, sha256="0" * 64, blocks=generate())


async def fetched(blocks: Sequence[bytes], size: int) -> bytes:
    async def serve(_request: web.Request) -> web.Response:
        return await file_response(content(blocks, size))

    app = web.Application()
    app.router.add_get("/", serve)
    async with TestClient(TestServer(app)) as client:
        return await (await client.get("/")).read()


@pytest.mark.parametrize("blocks", [[], [b"a"], [b"a" * 100_000] * 9])
async def test_the_blocks_arrive_whole(blocks: list[bytes]) -> None:
    data = b"".join(blocks)
    assert await fetched(blocks, len(data)) == data


async def test_a_file_that_is_shorter_than_it_says_breaks_off() -> None:
    with pytest.raises(aiohttp.ClientPayloadError):
        await fetched([b"gran"], 7)
