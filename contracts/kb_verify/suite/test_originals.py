"""Promises on kept files; an engine that keeps no files must say so."""

from __future__ import annotations

import hashlib

import pytest
from msgspec import UNSET

from kb_contracts.api import operations as ops
from kb_verify.client import Client
from kb_verify.files import pdf

NAME = "grä'nite; x=.txt"


@pytest.fixture
def keeping(kb: Client) -> Client:
    """An engine that keeps files; skips the test for an engine that does not."""
    if not kb.keeps_originals:
        pytest.skip("the engine keeps no files: its status has no kept_originals_bytes")
    return kb


def kept_bytes(kb: Client) -> int:
    kept = kb.call(ops.GET_STATUS).storage.kept_originals_bytes
    assert kept is not UNSET
    return kept


def test_a_file_comes_back_as_it_was_sent(keeping: Client) -> None:
    data = bytes(range(32, 127)) * 5_000
    document = keeping.document(keeping.file("a.txt", data))
    assert document.original is True
    assert [keeping.original(key) for key in (document.id, document.uid)] == [data, data]
    assert kept_bytes(keeping) == len(data)


def test_it_is_to_be_saved_under_its_name_and_never_run(keeping: Client) -> None:
    """For any content and name: a browser neither displays the file nor guesses its type."""
    data = b"<script>alert(1)</script>"
    response = keeping.request(ops.GET_ORIGINAL, keeping.file("page.html", data))
    assert response.headers["Content-Disposition"].startswith('attachment; filename="page.html"')
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert response.headers["ETag"] == f'"{hashlib.sha256(data).hexdigest()}"'
    odd = keeping.request(ops.GET_ORIGINAL, keeping.file(NAME, b"granite"))
    disposition = odd.headers["Content-Disposition"]
    assert "filename*=UTF-8''gr%C3%A4%27nite%3B%20x%3D.txt" in disposition
    assert disposition.partition("filename*=")[0].count('"') == 2


def test_one_of_each_content_is_kept_until_its_last_document_has_gone(keeping: Client) -> None:
    first, second = (keeping.file("a.txt", b"granite", dedup_scope=scope) for scope in "ab")
    assert (first != second, kept_bytes(keeping)) == (True, len(b"granite"))
    keeping.call(ops.DELETE_DOCUMENT, first, params={"purge": "true"})
    assert keeping.original(second) == b"granite"
    keeping.call(ops.DELETE_DOCUMENT, second, params={"purge": "true"})
    assert kept_bytes(keeping) == 0
    keeping.refused("document_not_found", ops.GET_ORIGINAL, second)


def test_what_is_kept_of_a_document_keeps_its_file(keeping: Client) -> None:
    document = keeping.file("a.txt", b"granite", source_path="/a")
    before = keeping.document(document)
    assert keeping.file("a.txt", b"basalt", source_path="/a") == document
    assert keeping.original(document) == b"basalt"
    assert kept_bytes(keeping) == len(b"granite" + b"basalt")
    restored = keeping.call(ops.RESTORE_VERSION, document, before.version)
    assert (restored.original, keeping.original(document)) == (True, b"granite")
    keeping.call(ops.DELETE_DOCUMENT, document)
    assert kept_bytes(keeping) == len(b"granite" + b"basalt")
    keeping.call(ops.PURGE_VERSIONS, document)
    assert kept_bytes(keeping) == 0


def test_clearing_keeps_no_file(keeping: Client) -> None:
    keeping.call(ops.DELETE_DOCUMENT, keeping.file("a.txt", b"granite"))
    keeping.file("b.txt", b"basalt")
    keeping.clear()
    assert kept_bytes(keeping) == 0


def test_a_page_is_drawn_with_a_passage_marked(keeping: Client) -> None:
    document = keeping.file("a.pdf", pdf(["granite weighs more than basalt " * 4, "basalt " * 20]))
    pictures = [
        keeping.call(ops.GET_PICTURE, document, params=params)
        for params in ({}, {"page": 1}, {"chunk": 1}, {"page": 2, "chunk": 0}, {"chunk": 0})
    ]
    first, same, *others = [each.content for each in pictures]
    assert {(each.media_type, each.content[:4]) for each in pictures} == {("image/png", b"\x89PNG")}
    assert (first == same, len({first, *others})) == (True, 4)
    keeping.refused("invalid_parameter", ops.GET_PICTURE, document, params={"page": 3}, parameter="page")
    text = keeping.file("a.txt", b"granite")
    keeping.refused("unsupported_format", ops.GET_PICTURE, text)


def test_what_has_no_file_says_why(kb: Client) -> None:
    note = kb.stored_note("granite")
    assert note.original is UNSET
    assert "text" in kb.refused("original_not_kept", ops.GET_ORIGINAL, note.id).detail
    kb.refused("original_not_kept", ops.GET_PICTURE, note.id)
    if not kb.keeps_originals:
        file = kb.document(kb.file("a.txt", b"basalt"))
        assert file.original is UNSET
        kb.refused("original_not_kept", ops.GET_ORIGINAL, file.id)
