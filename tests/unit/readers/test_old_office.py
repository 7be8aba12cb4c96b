"""Files in compound files: Word, Excel and PowerPoint from before 2007, and messages of Outlook."""

from __future__ import annotations

import struct

import pytest

from kb_readers.doc import read_doc
from kb_readers.msg import read_msg
from kb_readers.ppt import read_ppt
from kb_readers.xls import read_xls
from tests.support.documents import LOCKED_OFFICE, docx_of
from tests.support.old_office import (
    compound,
    doc,
    msg,
    number_cell,
    placed,
    ppt,
    record,
    shape_text,
    text_cell,
    xls,
)
from tests.support.reading import Read, only_text, refusal

IN_TABLE, ENDS_ROW, IN_LIST = b"\x16\x24\x01", b"\x17\x24\x01", b"\x0b\x46\x01\x00"
SLIDE = record(0x03EF, bytes(20))
HIDDEN = record(0x03F9, struct.pack("<10xH4x", 4))


def wide(text: str) -> bytes:
    return text.encode("utf-16-le")


def test_a_doc_keeps_headings_lists_tables_and_notes_and_drops_fields_and_deletions() -> None:
    paragraphs = [
        ("Stones\r", 1, IN_LIST),
        ("\x13 HYPERLINK x \x14shown\x15 gone\r", 0, b""),
        ("chalk\r", 0, IN_LIST),
        *[(f"{cell}\x07", 0, IN_TABLE) for cell in ("stone", "kg")],
        ("\x07", 0, IN_TABLE + ENDS_ROW),
        ("a note\r", 0, b""),
    ]
    length = sum(len(words) for words, _, _ in paragraphs)
    at = "".join(words for words, _, _ in paragraphs).index(" gone")
    found = read_doc(doc(paragraphs, lengths=[length - 7, 7], deleted=(at, at + 5)))
    assert found.title == "Stones"
    assert found.pages[0].text == (
        "# Stones\n\nshown\n\n- chalk\n\n| stone | kg |\n| --- | --- |\n\n## Footnotes\n\na note"
    )


def test_a_doc_of_word_95_is_read_with_a_remark_on_its_letters() -> None:
    found = read_doc(doc([("caf\xe9\r", 0, b"")], version=104))
    assert (found.pages[0].text, "do not record the encoding" in (found.remark or "")) == ("café", True)
    assert read_doc(doc([("cafe\r", 0, b"")], version=104)).remark is None


def test_a_ppt_has_a_page_for_each_slide_with_its_notes() -> None:
    shapes = record(0x0F9E, bytes(4)) + shape_text(4, "grey\rhard\x0brough")
    first = record(0x03EF, struct.pack("<5I4x", 0, 0, 0, 0, 9)) + record(0x040C, shapes, holds_records=True)
    data = ppt(
        [first, SLIDE + HIDDEN],
        placed(2, (0, "Stones")) + placed(3, (1, "chalk")),
        shape_text(2, "say it") + shape_text(4, "*"),
    )
    assert [(page.number, page.text) for page in read_ppt(data).pages] == [
        (1, "# Stones\n\ngrey\nhard\nrough\n\n## Notes\n\nsay it"),
        (2, "# Slide 2 (hidden slide)\n\nchalk"),
    ]
    assert read_ppt(data).title == "Stones"


def test_an_xls_is_read_as_an_xlsx_is() -> None:
    cells = text_cell(0, 0, "stone") + text_cell(0, 1, "weight") + text_cell(0, 2, "found")
    cells += text_cell(1, 0, "a|b") + number_cell(1, 1, 12.5, 1) + number_cell(1, 2, 39448, 2)
    data = xls(("Sums", 0, cells), ("Old", 1, text_cell(4, 0, "x")), formats={164: '0.0" kg"', 165: "d.m.yy"})
    assert only_text(read_xls, data) == (
        "# Sums\n\n| stone | weight | found |\n| --- | --- | --- |\n| a\\|b | 12.5 kg | 2008-01-01 |\n\n"
        "# Old (hidden sheet)\n\n| x |\n| --- |"
    )


def test_a_msg_is_read_as_a_mail_with_the_messages_in_it() -> None:
    inner = "__attach_version1.0_#00000001/__substg1.0_3701000D"
    data = msg(
        {
            "0037001F": wide("Stones"),
            "0C1A001E": b"Ada \xcb",
            "0C1F001F": wide("ada@example.org"),
            "0E04001F": wide("Bob"),
            "1000001F": wide("plain\n# words"),
            "__attach_version1.0_#00000000/3707001F": wide("a.pdf"),
            f"{inner}/__properties_version1.0": b"",
            f"{inner}/0037001F": wide("Within"),
            f"{inner}/10130102": b"<p>rich",
        },
        {0x00390040: 128_000_000_000_000_000, 0x3FFD0003: 1251},
    )
    found = read_msg(data)
    assert found.pages[0].text == (
        "# Stones\n\nFrom: Ada Л <ada@example.org>\nTo: Bob\nDate: Mon, 14 Aug 2006 03:33:20 +0000\n\n"
        "plain\n\\# words\n\n## Within\n\nrich\n\nAttachments: a.pdf"
    )
    assert found.remark == "Attachments are not read: a.pdf"


def test_the_body_of_a_msg_may_be_compressed_rtf() -> None:
    # The first six bytes are those of the dictionary, and the second "stone " repeats the first.
    packed = b"\x01\x00\x04 stone \x01\x0d\x63}"
    head = struct.pack("<4I", len(packed) + 12, 100, 0x75465A4C, 0)
    assert only_text(read_msg, msg({"0037001F": wide("S"), "10090102": head + packed})).endswith(
        "stone stone"
    )


@pytest.mark.parametrize("rtf", [b"abc", struct.pack("<4I", 20, 8, 1, 0) + bytes(8)])
def test_a_msg_keeps_its_plain_text_where_the_other_form_cannot_be_read(rtf: bytes) -> None:
    found = read_msg(msg({"0037001F": wide("S"), "1000001F": wide("feldspar"), "10090102": rtf}))
    assert found.pages[0].text.endswith("feldspar")
    assert "was not read" in (found.remark or "")


def test_a_table_between_tabs_under_the_name_of_an_xls_is_read() -> None:
    assert "| 1 | 2 |" in only_text(read_xls, b"a\tb\n1\t2\n")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"{\\rtf1 feldspar}", "feldspar"),
        (b"\xef\xbb\xbf<html><p>feldspar", "feldspar"),
        (b"<?xml version='1.0'?><a>feldspar</a>", "feldspar"),
        (docx_of([("", "feldspar")]), "feldspar"),
        ("<html><p>feldspar".encode("utf-16"), "feldspar"),
        (b"digraph { feldspar -> mica }", "digraph { feldspar -> mica }"),
        (b"Date: x\nMIME-Version: 1.0\nContent-Type: text/html\n\n<p>feldspar", "feldspar"),
    ],
)
def test_a_doc_file_with_other_content_is_read_by_its_content(content: bytes, text: str) -> None:
    assert only_text(read_doc, content) == text


PAST = b"\2" + struct.pack("<I", 28) + struct.pack("<3i", 0, 5, 4) + struct.pack("<HIH", 0, 1 << 29, 0) * 2
DEEP = b""
for _ in range(200):
    DEEP = record(0x040C, DEEP, holds_records=True)
LARGER = bytearray(doc([("x\r", 0, b"")]))
struct.pack_into("<Q", LARGER, 1024 + 128 + 120, 1 << 30)
BOMB = struct.pack("<4I", 100, 1 << 31, 0x75465A4C, 0) + bytes(100)
WITHIN = "__attach_version1.0_#00000000/__substg1.0_3701000D/"
NESTED = {f"{WITHIN * depth}__properties_version1.0": b"" for depth in range(1, 13)}


READERS = (read_doc, read_xls, read_ppt, read_msg)


@pytest.mark.parametrize(
    ("read", "data", "code"),
    [
        *[(read, LOCKED_OFFICE, "file_corrupt") for read in READERS],
        *[(read, compound({"EncryptedPackage": b""}), "file_encrypted") for read in READERS],
        *[(read, compound({"Other": b""}), "file_corrupt") for read in READERS],
        *[(read, b"\0\1plain", "file_corrupt") for read in READERS],
        (read_doc, doc([("x\r", 0, b"")], flags=0x0100), "file_encrypted"),
        (read_doc, doc([("x\r", 0, b"")], flags=0x0004, version=104), "file_corrupt"),
        (read_doc, doc([("x\r", 0, b"")], pieces=b""), "file_corrupt"),
        (read_doc, bytes(LARGER), "file_corrupt"),
        (read_doc, doc([("x\x07" * 1_500, 0, IN_TABLE)]), "extraction_failed"),
        (read_doc, b"<?xml?><!DOCTYPE a [<!ENTITY x SYSTEM 'file:///x'>]><a>&x;</a>", "file_corrupt"),
        (read_ppt, ppt([SLIDE], placed(2), token=0xF3D1C4DF), "file_encrypted"),
        (read_ppt, ppt([DEEP], placed(2)), "extraction_failed"),
        (read_msg, msg({"0037001F": wide("S"), "10090102": BOMB}), "extraction_failed"),
        (read_msg, msg(NESTED), "extraction_failed"),
    ],
)  # fmt: skip
def test_a_hostile_locked_or_other_file_is_refused_with_a_reason(read: Read, data: bytes, code: str) -> None:
    assert refusal(read, data).code == code


def test_macros_are_not_read_and_pieces_past_the_end_are_empty() -> None:
    assert only_text(read_doc, doc([("x\r", 0, b"")], lengths=[5], pieces=PAST)) == ""
    with_macros = compound({"WordDocument": b"", "Macros/VBA/Module1": b"Shell"})
    assert refusal(read_doc, with_macros).code == "file_corrupt"
