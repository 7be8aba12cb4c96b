"""EPUB: a book's documents in order, without trust in the ZIP."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from kb_readers import xml_files
from kb_readers.epub import read_epub
from tests.support.epubs import PACKAGE, book
from tests.support.reading import refusal

refused = partial(refusal, read_epub)


def test_a_book_is_its_documents_in_their_order_each_once() -> None:
    found = read_epub(book())
    assert found.title == "Of Stones"
    assert [page.text for page in found.pages] == ["# One\n\nGranite is hard.", "# Two\n\nChalk is not."]
    assert {page.number for page in found.pages} == {None}


@pytest.mark.parametrize(
    ("data", "code", "word"),
    [
        (b"", "file_corrupt", "damaged"),
        (b"PK\3\4" + b"\0" * 50, "file_corrupt", "damaged"),
        (book(path="gone.opf", package=""), "file_corrupt", "gone.opf is missing"),
        (book(**{"META-INF__container.xml": "<container/>"}), "file_corrupt", "missing"),
        (book(**{"OEBPS__text__two.xhtml": ""}), "file_corrupt", "two.xhtml is missing"),
        (book(package="<package/>"), "file_corrupt", "nothing to read"),
        (book(package="<package>"), "file_corrupt", "damaged"),
        (book(package='<!DOCTYPE p [<!ENTITY a "b">]><package/>'), "file_corrupt", "entities"),
        (book(package="<a>" * 2_000), "extraction_failed", "deep"),
        (
            book(**{"META-INF__encryption.xml": '<e><EncryptionMethod Algorithm="aes256"/></e>'}),
            "file_encrypted",
            "password",
        ),
    ],
)
def test_a_book_that_cannot_be_read_says_why(data: bytes, code: str, word: str) -> None:
    refused(data, code, word)


def test_fonts_may_be_obfuscated() -> None:
    fonts = '<e><EncryptionMethod Algorithm="http://www.idpf.org/2008/embedding"/></e>'
    assert len(read_epub(book(**{"META-INF__encryption.xml": fonts})).pages) == 2


def test_a_path_leads_nowhere_but_into_the_book() -> None:
    item = '<item id="a" href="../../../../../etc/passwd" media-type="application/xhtml+xml"/>'
    assert "etc/passwd is missing" in refused(book(package=PACKAGE.format(more=item))).message


def test_a_bomb_is_refused_before_it_is_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xml_files, "MOST_UNPACKED_BYTES", 1 << 20)
    bomb: dict[str, Any] = {"OEBPS__text__two.xhtml": b"a" * (2 << 20)}
    assert refused(book(**bomb)).code == "extraction_failed"
