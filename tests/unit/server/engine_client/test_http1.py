"""HTTP/1.1 without a socket: parsing and ends of responses, and malformed ones."""

from __future__ import annotations

import contextlib
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kb_server.engine_client.errors import EngineBadAnswer
from kb_server.engine_client.http1 import MAX_ANSWER_BYTES, MAX_HEAD_BYTES, RawResponse, ResponseReader

OK = b"HTTP/1.1 200 OK\r\n"
JSON = b"Content-Type: application/json\r\n"
WHOLE = OK + JSON + b"Content-Length: 2\r\n\r\n{}"
CHUNKED = OK + JSON + b"Transfer-Encoding: chunked\r\n\r\n"
IN_CHUNKS = b"HTTP/1.1 100 Continue\r\n\r\n" + CHUNKED + b"1;x=y\r\n{\r\n01\r\n}\r\n0\r\nX: y\r\n\r\n"


def read(*pieces: bytes, ends: bool = False) -> RawResponse | None:
    """The result of a new reader for these bytes, and for the end of the connection."""
    reader = ResponseReader()
    response = None
    for piece in pieces:
        response = reader.feed(piece)
    return reader.end() if ends else response


def body_of(raw: bytes, *, ends: bool = False) -> bytes | None:
    response = read(raw, ends=ends)
    return None if response is None else response.body


class TestResponses:
    @given(st.sampled_from([WHOLE, IN_CHUNKS]), st.data())
    def test_a_response_is_the_same_however_it_is_cut(self, raw: bytes, data: st.DataObject) -> None:
        cuts = data.draw(st.lists(st.integers(1, len(raw) - 1), unique=True).map(sorted))
        pieces = [raw[start:end] for start, end in pairwise([0, *cuts, len(raw)])]
        assert read(*pieces) == RawResponse(200, "application/json", b"{}")
        assert read(*pieces[:-1]) is None

    @pytest.mark.parametrize(
        ("raw", "body"),
        [
            (WHOLE, b"{}"),
            (CHUNKED + b"1;x=y\r\n{\r\n1\r\n}\r\n0\r\n\r\n", b"{}"),
            (CHUNKED + b"2\r\n{}\r\n0\r\nContent-Type: text/html\r\n\r\n", b"{}"),
            (b"HTTP/1.1 100 Continue\r\n\r\n" + WHOLE, b"{}"),
            (b"HTTP/1.1 103 Early Hints\r\nContent-Type: text/html\r\n\r\n" + WHOLE, b"{}"),
            (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
            (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 10\r\n\r\n", b""),
            (OK + b"Content-Length: 0\r\n\r\n", b""),
        ],
    )
    def test_a_body_ends_where_its_framing_says(self, raw: bytes, body: bytes) -> None:
        assert body_of(raw) == body

    def test_a_trailer_and_a_provisional_head_say_nothing_about_the_body(self) -> None:
        raw = b"HTTP/1.1 103 Early Hints\r\nRetry-After: 5\r\n\r\n" + CHUNKED
        assert read(raw + b"2\r\n{}\r\n0\r\nContent-Type: text/html\r\n\r\n") == RawResponse(
            200, "application/json", b"{}"
        )

    def test_a_body_without_a_length_ends_with_the_connection(self) -> None:
        assert body_of(OK + JSON + b"\r\n{}") is None
        assert body_of(OK + JSON + b"\r\n{}", ends=True) == b"{}"

    @pytest.mark.parametrize(
        "raw", [OK + b"Content-Length: 3\r\n\r\n{}", CHUNKED + b"2\r\n{}\r\n", CHUNKED + b"ff\r\n{}"]
    )
    def test_a_body_that_breaks_off_is_a_fault_that_may_pass(self, raw: bytes) -> None:
        with pytest.raises(EngineBadAnswer, match="broke off") as raised:
            read(raw, ends=True)
        assert raised.value.transient

    @pytest.mark.parametrize("raw", [b"", b"HTT", OK, OK + JSON, b"HTTP/1.1 100 Continue\r\n\r\n"])
    def test_before_its_head_is_whole_there_is_no_response(self, raw: bytes) -> None:
        assert read(raw, ends=True) is None

    def test_of_the_headers_those_that_count_are_read(self) -> None:
        raw = b"HTTP/1.1 503 Busy\r\ncontent-TYPE: Application/Problem+JSON ; charset=x\r\nretry-after: 7\r\n"
        assert read(raw + b"Content-Length: 0\r\n\r\n") == RawResponse(
            503, "application/problem+json", b"", "7"
        )


class TestReuse:
    @pytest.mark.parametrize(
        ("raw", "again"),
        [
            (WHOLE, True),
            (CHUNKED + b"0\r\n\r\n", True),
            (OK + b"Connection: close\r\nContent-Length: 0\r\n\r\n", False),
            (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", False),
            (WHOLE + WHOLE, False),
            (WHOLE + b"HTTP/1.1 20", False),
            (WHOLE + b"garbage", False),
            (b"HTTP/1.1 204 No Content\r\nContent-Length: 2\r\n\r\n", True),
            (b"HTTP/1.1 204 No Content\r\nContent-Length: 2\r\n\r\n{}", False),
            (OK + b"Connection: close\r\nContent-Length: 0\r\n\r\nsurplus", False),
        ],
    )
    def test_a_connection_is_used_again_only_where_nothing_is_left_of_its_response(
        self, raw: bytes, again: bool
    ) -> None:
        reader = ResponseReader()
        assert reader.feed(raw) is not None
        assert reader.reusable is again

    def test_one_response_follows_another(self) -> None:
        reader = ResponseReader()
        for number in (b"1", b"2"):
            reader.begin()
            assert reader.feed(OK + b"Content-Length: 1\r\n\r\n" + number) == RawResponse(200, "", number)


class TestHostileBytes:
    @pytest.mark.parametrize(
        "raw",
        [
            b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
            b"HTTP/1.1 abc OK\r\n\r\n",
            b"HTTP/1.1 200 OK\nContent-Length: 0\n\n",
            OK + b"no colon here\r\n\r\n",
            OK + b"Content-Length: x\r\n\r\n",
            OK + b"Content-Length: -1\r\n\r\n",
            OK + b"Content-Length: 99999999999999999999999\r\n\r\n",
            OK + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n{}",
            OK + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
            OK + b"X: a\r\n folded\r\n\r\n",
            OK + b"X: a\0b\r\n\r\n",
            CHUNKED + b"zz\r\n{}\r\n",
            CHUNKED + b"-2\r\n{}\r\n",
            CHUNKED + b"ffffffffffffffffff\r\n{}\r\n",
            b"HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n\x81\x00",
        ],
    )
    def test_an_invalid_http_response_is_a_transient_fault(self, raw: bytes) -> None:
        with pytest.raises(EngineBadAnswer) as raised:
            read(raw)
        assert raised.value.transient

    @pytest.mark.parametrize(
        ("head", "block"),
        [(OK, b"X: y\r\n"), (OK + b"X: ", b"x" * 999), (b"", b"HTTP/1.1 100 Continue\r\n\r\n")],
        ids=["headers", "one header", "provisional heads"],
    )
    def test_a_head_is_bounded(self, head: bytes, block: bytes) -> None:
        with pytest.raises(EngineBadAnswer, match="head"):
            read(head, *[block] * (2 * MAX_HEAD_BYTES // len(block)))

    @pytest.mark.parametrize(
        ("head", "block"),
        [
            (OK + b"\r\n", b" " * 65_536),
            (CHUNKED, b"1\r\n{\r\n" * 10_000),
            (CHUNKED + b"1;", b"x" * 65_536),
            (CHUNKED + b"0\r\n", b"X: y\r\n" * 10_000),
        ],
        ids=["until its end", "small chunks", "extension of a chunk", "trailers"],
    )
    def test_the_total_size_of_a_response_is_bounded(
        self, head: bytes, block: bytes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        most = 1 << 20
        monkeypatch.setattr("kb_server.engine_client.http1.MAX_ANSWER_BYTES", most)
        assert most < MAX_ANSWER_BYTES
        with pytest.raises(EngineBadAnswer, match="over"):
            read(head, *[block] * (2 * most // len(block)))

    @pytest.mark.parametrize("coding", [b"gzip", b"deflate", b"br", b"identity, gzip"])
    def test_a_compressed_body_was_not_asked_for(self, coding: bytes) -> None:
        head = OK + JSON + b"Content-Encoding: " + coding + b"\r\n"
        with pytest.raises(EngineBadAnswer, match="compressed"):
            read(head + b"Content-Length: 2\r\n\r\n{}")

    @given(st.lists(st.binary(max_size=40), max_size=4), st.sampled_from([b"", OK, CHUNKED, WHOLE]))
    def test_no_bytes_make_it_stumble(self, pieces: list[bytes], before: bytes) -> None:
        with contextlib.suppress(EngineBadAnswer):
            read(before, *pieces, ends=True)
