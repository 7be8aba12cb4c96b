"""Labels of encodings, and the conversion of a declared encoding to UTF-8."""

from __future__ import annotations

import codecs

import pytest
from webencodings.labels import LABELS

from kb_contracts.api.formats import format_of
from kb_contracts.semantics.encodings import ToUtf8, codec_of

NO_TEXT = ("replacement", "x-user-defined")


def test_every_label_of_the_standard_has_a_codec() -> None:
    known = {label for label, name in LABELS.items() if name not in NO_TEXT}
    assert {label for label in LABELS if codec_of(label)} == known
    assert all(codecs.lookup(codec_of(f" {label.upper()}") or "") for label in known)


@pytest.mark.parametrize(
    "label", ["", "x-granite", "replacement", "hz-gb-2312", "x-user-defined", "ü", "a\0"]
)
def test_a_label_that_is_not_for_text_has_no_codec(label: str) -> None:
    assert codec_of(label) is None


@pytest.mark.parametrize(
    ("label", "data"),
    [
        ("latin1", "Köln – “Größe”".encode("cp1252")),
        ("gb2312", "Köln 镕堃".encode("gb18030")),
        ("utf-16be", "Köln".encode("utf-16-be")),
        ("latin1", "Köln".encode("utf-16")),
        ("latin1", "Köln".encode("utf-8-sig")),
        ("iso-2022-jp", "Tokyo 東京".encode("iso2022_jp")),
    ],
    ids=["Latin 1", "GBK", "UTF-16", "mark of UTF-16", "mark of UTF-8", "ISO 2022"],
)
@pytest.mark.parametrize("size", [1, 3, 100])
def test_a_text_is_converted_block_by_block(label: str, data: bytes, size: int) -> None:
    conversion = ToUtf8(codec_of(label) or "")
    blocks = [conversion.convert(data[start : start + size]) for start in range(0, len(data), size)]
    found = b"".join([*blocks, conversion.convert(b"", final=True)])
    assert found.startswith(codecs.BOM_UTF8)
    assert found.decode("utf-8-sig")[:4] in ("Köln", "Toky")


def test_a_declared_encoding_counts_for_each_format_that_is_text() -> None:
    assert all(format_of(name).is_text for name in ("dump.sql", "a.csv", "a.ini", "a.xml", "a.py", "a.vue"))
    assert not any(format_of(name).is_text for name in ("a.pdf", "a.docx", "a.png"))


def test_a_text_that_ends_within_a_character_is_refused() -> None:
    conversion = ToUtf8("cp932")
    assert conversion.convert(b"abc\x81") == codecs.BOM_UTF8 + b"abc"
    with pytest.raises(UnicodeDecodeError):
        conversion.convert(b"", final=True)
