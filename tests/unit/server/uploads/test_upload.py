"""An upload's state machine and checks, without a disk."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from aiohttp import content_disposition_filename, parse_content_disposition
from hypothesis import given
from hypothesis import strategies as st

from kb_contracts.api.models import FileFields
from kb_server.engine_client.multipart import MultipartFile
from kb_server.engine_client.port import FileSource
from kb_server.uploads.service import read_blocks
from kb_server.uploads.upload import (
    CHUNK_BYTES,
    MAX_CHUNKS,
    End,
    Staged,
    State,
    UploadError,
    check_body,
    check_chunk,
    check_chunk_shape,
    check_filename,
    check_format,
    check_open,
    check_sha256,
    check_whole,
    missing_chunks,
)
from tests.support.uploads import upload

MOST = 1_000
OUT_OF_RANGE = (-1, MAX_CHUNKS, 1 << 40)
UNSIZED = upload(total_size=None)
WIDE_GAP = {"missing": list(range(100)), "missing_total": MAX_CHUNKS - 1}


@pytest.mark.parametrize(
    ("check", "code", "words", "details"),
    [
        (partial(check_chunk, upload(), Staged({0: 5}), 1, 6, MOST), "size_exceeded", "11 bytes, but 10",
         {"received_bytes": 5, "total_size": 10}),
        (partial(check_chunk, upload(), Staged(body=10), 0, 1, MOST), "contradiction",
         "already sent to the upload URL", {}),
        *((partial(check_chunk_shape, index, 1), "invalid_parameter", "chunk_index counts from 0", {})
          for index in OUT_OF_RANGE),
        (partial(check_chunk_shape, 0, 0), "invalid_parameter", "at least one byte", {}),
        (partial(check_chunk_shape, 0, CHUNK_BYTES + 1), "chunk_too_large", "8388608", {}),
        (partial(check_body, upload(), Staged({0: 1}), 10), "contradiction",
         "begun with kb_upload_chunk", {}),
        (partial(check_whole, upload(), Staged({0: 1, 2: 1, 4: 1})), "missing_chunks", "missing: 1, 3",
         {"missing": [1, 3]}),
        (partial(check_whole, upload(), Staged({MAX_CHUNKS - 1: 1})), "missing_chunks", "…", WIDE_GAP),
        (partial(check_whole, upload(), Staged({0: 8})), "size_mismatch", "8 bytes were received, but 10",
         {"received_bytes": 8, "total_size": 10}),
        (partial(check_whole, upload(), Staged({0: 10}), End(total_size=11)), "size_mismatch",
         "10 bytes were received, but 11", {"received_bytes": 10, "total_size": 11}),
        (partial(check_whole, UNSIZED, Staged({0: 1})), "missing_required_parameter",
         "total_size, sha256 or chunks", {"parameter": "total_size"}),
        (partial(check_whole, UNSIZED, Staged({0: 1}), End(chunks=3)), "missing_chunks", "missing: 1, 2",
         {"missing": [1, 2]}),
        (partial(check_whole, UNSIZED, Staged({0: 1, 1: 1}), End(chunks=1)), "chunks_mismatch",
         "2 chunks were received, but 1", {"chunks_received": 2}),
        (partial(check_whole, UNSIZED, Staged(), End(sha256="a" * 64)), "missing_chunks", "missing: 0",
         {"missing": [0]}),
        (partial(check_chunk, UNSIZED, Staged({0: MOST}), 1, 1, MOST), "upload_too_large",
         "1001 bytes; at most 1000", {"max_bytes": MOST}),
        (partial(check_body, UNSIZED, Staged(), 10), "contradiction", "kb_upload_chunk", {}),
    ],
)  # fmt: skip
def test_a_chunk_that_does_not_fit_the_upload_is_refused_with_details(
    check: Callable[[], object], code: str, words: str, details: dict[str, Any]
) -> None:
    with pytest.raises(UploadError, match=words) as refused:
        check()
    assert refused.value.code == code
    assert refused.value.details.items() >= details.items()


def test_the_largest_chunk_and_a_body_without_chunks_are_taken() -> None:
    check_chunk_shape(MAX_CHUNKS - 1, CHUNK_BYTES)
    check_whole(upload(), Staged(body=10))


@pytest.mark.parametrize("end", [End(total_size=10), End(sha256="a" * 64), End(chunks=2)])
def test_each_of_three_says_where_a_file_of_unknown_size_ends(end: End) -> None:
    check_whole(UNSIZED, Staged({0: 5, 1: 5}), end)
    check_whole(upload(total_size=None, sha256="a" * 64), Staged({0: 5, 1: 5}))


@pytest.mark.parametrize("state", [State.FINISHING, State.DONE])
def test_an_upload_that_is_not_open_is_refused_with_its_state(state: State) -> None:
    check_open(State.OPEN, "id")
    with pytest.raises(UploadError) as refused:
        check_open(state, "id")
    assert refused.value.code == f"upload_{state}"


@pytest.mark.parametrize(
    ("indexes", "missing"),
    [([], [0]), ([0], []), ([0, 2], [1]), ([3], [0, 1, 2]), ([0, 1, 2], []), ([1, 4], [0, 2, 3])],
)
def test_gaps_are_named(indexes: list[int], missing: list[int]) -> None:
    assert missing_chunks(Staged(dict.fromkeys(indexes, 1))) == missing


@pytest.mark.parametrize(
    "name",
    [
        "report.pdf",
        "Übersicht 2026.md",
        "a b.txt",
        ".env",
        "Shot 1.00\u202fPM.png",
        "a\u00a0b",
        "\U0001f469\u200d\U0001f4bb.md",
        "x" * 255,
        " padded.txt ",
    ],
)
def test_a_bare_name_is_taken(name: str) -> None:
    assert check_filename(name) == name.strip()


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        ".",
        "..",
        "a/b",
        "/etc/passwd",
        "..\\x",
        "C:\\x",
        "a\nb",
        "a\x00b",
        "x" * 256,
        "a\u202eb",
        "a\u2028b",
        "a\x85b",
        "\ud800",
    ],
)
def test_a_filename_with_a_folder_or_control_characters_is_refused(name: str) -> None:
    with pytest.raises(UploadError, match="filename takes") as refused:
        check_filename(name)
    assert refused.value.details["parameter"] == "filename"


@pytest.mark.parametrize("name", ['a";b.pdf', 'a" ;b.pdf', "a;b;c.pdf"])
def test_a_name_that_no_form_can_carry_is_refused(name: str) -> None:
    """The engine would refuse it only after the whole file had been sent."""
    with pytest.raises(UploadError, match="would not arrive whole"):
        check_filename(name)


@given(st.text(alphabet='a";=\\ .', min_size=1, max_size=8))
def test_a_name_that_is_taken_arrives_as_it_is(name: str) -> None:
    try:
        taken = check_filename(name)
    except UploadError:
        return
    source = FileSource(taken, 1, lambda: read_blocks([]))
    head = MultipartFile(source, FileFields())._head().decode()
    header = head.split("Content-Disposition: ")[-1].split("\r\n")[0]
    _, parameters = parse_content_disposition(header)
    assert content_disposition_filename(parameters) == taken


@pytest.mark.parametrize("name", ["a.exe", "a.tar.gz", "core", ".pdf"])
def test_a_kind_of_file_that_is_not_taken_is_refused(name: str) -> None:
    with pytest.raises(UploadError, match=r"Use PDF \(\.pdf\), .* or Lua \(\.lua\)") as refused:
        check_format(name)
    assert (refused.value.code, refused.value.status) == ("unsupported_format", 415)


@pytest.mark.parametrize("name", ["a.PDF", "a.htm", "a.b.jpeg", "notes.log"])
def test_a_kind_of_file_that_is_taken_is_known_by_the_end_of_its_name(name: str) -> None:
    check_format(name)


def test_a_sha256_is_compared_in_lower_case() -> None:
    assert check_sha256("A" * 64) == "a" * 64
    assert check_sha256(None) is None


@pytest.mark.parametrize("value", ["", "abc", "g" * 64, "a" * 63, "a" * 65, "a" * 64 + "\n"])
def test_a_malformed_sha256_is_refused(value: str) -> None:
    with pytest.raises(UploadError, match="64 hexadecimal"):
        check_sha256(value)


@given(
    st.dictionaries(st.integers(0, 50), st.integers(1, 9), max_size=12), st.integers(0, 50), st.integers(1, 9)
)
def test_a_chunk_is_taken_exactly_while_the_total_allows_it(
    chunks: dict[int, int], index: int, size: int
) -> None:
    total_size = 40
    plan = upload(total_size=total_size)
    after = Staged({**chunks, index: size}).received
    if after <= total_size:
        check_chunk(plan, Staged(chunks), index, size, MOST)
    else:
        with pytest.raises(UploadError, match=f"{after} bytes"):
            check_chunk(plan, Staged(chunks), index, size, MOST)


@given(st.sets(st.integers(0, 60), min_size=1, max_size=20))
def test_sending_what_is_missing_makes_it_whole(indexes: set[int]) -> None:
    chunks = dict.fromkeys(indexes, 1)
    missing = missing_chunks(Staged(chunks))
    assert not indexes & set(missing)
    assert missing_chunks(Staged({**chunks, **dict.fromkeys(missing, 1)})) == []
