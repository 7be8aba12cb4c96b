"""RTF: its text in order, in the encodings of its fonts, and refusals of hostile files."""

from __future__ import annotations

import pytest

from kb_readers.rtf import read_rtf
from tests.support.reading import only_text, refusal

FONTS = rb"{\fonttbl{\f0\fcharset0 A;}{\f1\fcharset204 A;}{\f2\fcharset2 Symbol;}{\f3\fcharset128 G;}}"
STYLES = rb"{\stylesheet{\s0 Normal;}{\s2 heading 2;}{\s3\outlinelevel0 Mine;}{\*\cs4 Strong;}}"


def rtf(body: bytes) -> bytes:
    return rb"{\rtf1\ansi\ansicpg1252" + FONTS + STYLES + body + b"}"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (rb"\pard\s2 Hard\par\pard\s3 Soft\par\pard\outlinelevel2 Odd\par\pard # x\par",
         "## Hard\n\n# Soft\n\n### Odd\n\n\\# x"),
        (rb"\s2{\listtext I.\tab}Hard\par{\listtext\f2\'b7\tab}Soft\par", "## I. Hard\n\n## Soft"),
        (rb"caf\'e9 \f1\'ea\'e0\f0  \u8364?\u-10179?\u-8704? \f2 a\f3\'8a\'bf\'8aA", "café ка €😀 α漢晦"),
        (rb"{\uc2\u8364\'a2\'e3}x {\upr{\'3f}{\*\ud{\u233?}}}", "€x é"),
        (rb"10{\super 6} a\line b\~c \-d\_e\emdash f", "10^6 a\nb c d-e—f"),
        (rb"{\listtext 1.\tab}one\par{\listtext\f2\'b7\tab}\ilvl1 two\par", "1. one\n  - two"),
        (rb"\trowd\intbl a\cell b\cell\row\intbl c\par d\cell|\cell\row\pard e\par",
         "| a | b |\n| --- | --- |\n| c d | \\| |\n\ne"),
        (rb"a{\footnote note}{\header top\par}{\headerf top\par} b\par",
         "a b\n\n## Footnotes\n\nnote\n\n## Headers and footers\n\ntop"),
        (rb"{\field{\*\fldinst HYPERLINK x}{\fldrslt shown}}{\deleted gone} {\v hidden}{\*\atnid X}"
         rb"{\*\annotation no}", "shown hidden"),
        (rb"{\shp{\*\shpinst{\sp{\sv b}}{\shptxt box\par}}{\shprslt old}}after{\*\cs4 not}{x\*\cs4 y}",
         "box\n\nafterxy"),
        (rb"{\pict\bin5 {}{}{x}a{\object{\*\objdata 414243}{\result shown}}\bin99999999 tail", "ashown"),
    ],
)  # fmt: skip
def test_text_is_read_in_order_and_what_is_no_text_is_not(body: bytes, text: str) -> None:
    assert only_text(read_rtf, rtf(body)) == text


def test_the_title_is_the_declared_one_and_html_of_outlook_is_unwrapped() -> None:
    assert read_rtf(rtf(rb"{\info{\title Of Stones}{\author Ada}}x")).title == "Of Stones"
    wrapped = (
        rb"\fromhtml1{\*\htmltag64 <h1>}\htmlrtf {\b\htmlrtf0 A & B\htmlrtf }\htmlrtf0{\*\htmltag72 </h1>}"
    )
    assert only_text(read_rtf, rtf(wrapped)) == "# A & B"


def test_lost_characters_and_a_missing_end_are_in_the_remark() -> None:
    assert "1 characters cannot be decoded" in (read_rtf(rtf(rb"\'81 a")).remark or "")
    assert "cut off" in (read_rtf(rtf(b"{a")).remark or "")
    assert read_rtf(rtf(b"a")).remark is None


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (rtf(b"{" * 2_000), "extraction_failed"),
        (rtf(rb"\cell" * 2_000), "extraction_failed"),
        (b"Plain text", "file_corrupt"),
        (b"", "file_corrupt"),
    ],
)
def test_a_hostile_file_is_refused(data: bytes, code: str) -> None:
    assert refusal(read_rtf, data).code == code


@pytest.mark.parametrize("begin", [rb"\pard\plain ", rb"\pard "])
def test_text_without_a_font_has_the_character_set_of_the_default_font(begin: bytes) -> None:
    table = rb"{\rtf1\ansi\ansicpg1252\deff0{\fonttbl{\f0\fcharset204 Arial;}}"
    assert only_text(read_rtf, table + begin + rb"\'ea\'e0}") == "ка"
