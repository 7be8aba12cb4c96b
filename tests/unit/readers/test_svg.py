"""SVG: the texts of a drawing in order; references are neither loaded nor run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from kb_contracts.api.formats import FORMATS
from kb_readers.failures import ExtractionFailed
from kb_readers.model import Limits
from kb_readers.svg import read_svg
from tests.support.reading import only_text, read_path, refusal

text = partial(only_text, read_svg)
refused = partial(refusal, read_svg)


NAMESPACE = 'xmlns="http://www.w3.org/2000/svg"'


def svg(inner: str, before: str = "") -> bytes:
    return f"{before}<svg {NAMESPACE}>{inner}</svg>".encode()


def test_the_text_of_a_drawing_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kb_readers.model.DEFAULT_LIMITS", Limits(text_bytes=10))
    assert refused(svg("<text>granite</text><text>quarry</text>")).code == "extraction_failed"
    assert text(svg("<text>granite</text>")) == "granite"


def test_titles_descriptions_and_texts_come_in_the_order_of_the_file() -> None:
    """The drawing's title is its heading; other text that looks like a heading is escaped."""
    extraction = read_svg(
        svg(
            "<title>The  quarry</title><desc>Where granite\n is cut</desc>"
            "<g><title>a tip</title><text>North <tspan>gate</tspan></text></g>"
            "<text># 7</text><path d='M0 0'/>"
        )
    )
    assert extraction.pages[0].text == "# The quarry\n\nWhere granite is cut\na tip\nNorth gate\n\\# 7"
    assert (extraction.title, extraction.method) == ("The quarry", "text_extraction")


@pytest.mark.parametrize(
    ("inner", "shown"),
    [
        ('<tspan x="0" y="1">one</tspan><tspan x="0" y="2">two</tspan>', "one\ntwo"),
        ('<tspan x="0">one</tspan><tspan x="0" dy="1em">two</tspan>', "one\ntwo"),
        ('<tspan x="0" y="1">gra</tspan><tspan x="9" y="1">nite</tspan>', "granite"),
        ('m<tspan dy="-4">2</tspan>', "m2"),
        ("<![CDATA[a < b]]> &amp; <a href='https://example.com/'>c</a>", "a < b & c"),
    ],
)
def test_pieces_of_a_text_are_set_beside_or_below_one_another(inner: str, shown: str) -> None:
    assert text(svg(f'<text x="0" y="1">{inner}</text>')) == shown


def test_labels_in_html_are_read_and_their_copies_for_others_are_not() -> None:
    html = '<div xmlns="http://www.w3.org/1999/xhtml">Start<br/>here</div>'
    both = f"<switch><foreignObject>{html}</foreignObject><text>Start her...</text></switch>"
    assert text(svg(both + "<text>after</text>")) == "Start\nhere\nafter"


def test_a_drawing_without_a_namespace_or_in_another_encoding_is_read() -> None:
    assert text(b"<svg><text>plain</text></svg>") == "plain"
    assert text(svg("<text>Größe</text>").decode().encode("utf-16")) == "Größe"
    assert (
        text(b'<?xml version="1.0" encoding="windows-1252"?><svg><text>Gr\xf6\xdfe</text></svg>') == "Größe"
    )


def test_scripts_styles_and_metadata_are_not_text() -> None:
    inner = (
        "<script>alert('x')</script><style>text { fill: red }</style><metadata><title>RDF</title></metadata>"
    )
    assert text(svg(inner)) == ""


def test_an_svg_loads_no_file_outside_of_itself(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("do not tell")
    document_type = (
        '<?xml-stylesheet href="http://127.0.0.1:9/a.css"?>'
        '<!DOCTYPE svg PUBLIC "-//W3C//DTD SVG 1.1//EN" "http://127.0.0.1:9/svg11.dtd" ['
        f'<!ENTITY e SYSTEM "{secret.as_uri()}"><!ENTITY % p SYSTEM "http://127.0.0.1:9/p">%p;]>'
    )
    inner = f'<text>a&e;b</text><image href="{secret.as_uri()}"/><use href="http://127.0.0.1:9/u.svg#x"/>'
    assert text(svg(inner, document_type)) == "ab"


def test_short_entities_are_put_in() -> None:
    data = (
        '<!DOCTYPE svg [<!ENTITY ns "http://www.w3.org/2000/svg"><!ENTITY who "Ada">]>'
        '<svg xmlns="&ns;"><text>&who; drew it</text></svg>'
    )
    assert text(data.encode()) == "Ada drew it"


def laughs() -> bytes:
    entities = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, 10))
    return svg("<text>&e9;</text>", f'<!DOCTYPE svg [<!ENTITY e0 "ha">{entities}]>')


def hidden_laughs() -> bytes:
    return svg("<text>&b;</text>", '<!DOCTYPE svg [<!ENTITY a "ha"><!ENTITY b "&#38;a;&#38;a;">]>')


def long_entity() -> bytes:
    return svg(f"<text>{'&e;' * 100_000}</text>", f'<!DOCTYPE svg [<!ENTITY e "{"x" * 100_000}">]>')


@pytest.mark.parametrize("bomb", [laughs, hidden_laughs, long_entity])
def test_entities_that_grow_are_refused(bomb: Callable[[], bytes]) -> None:
    refused(bomb(), "file_corrupt", "entities")


async def test_short_entities_cannot_fill_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(svg(f"<text>{'&e;' * 400_000}</text>", f'<!DOCTYPE svg [<!ENTITY e "{"x" * 1000}">]>'))
    with pytest.raises(ExtractionFailed) as failed:
        await read_path(path, FORMATS["svg"], Limits(memory_bytes=1 << 30))
    assert failed.value.code in {"extraction_failed", "extraction_memory", "file_corrupt"}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "damaged"),
        (b"just words", "damaged"),
        (b"\x1f\x8b\x08" + bytes(50), "damaged"),
        (svg("<text>cut off</text>")[:-9], "damaged"),
        (b"<html><body>a page</body></html>", "no SVG"),
        (b'<?xml version="1.0" encoding="klingon"?><svg/>', "damaged"),
    ],
)
def test_an_svg_that_cannot_be_read_says_why(data: bytes, message: str) -> None:
    refused(data, "file_corrupt", message)


def test_a_drawing_deeper_than_any_is_refused() -> None:
    """The parser would take minutes for it."""
    refused(svg("<g>" * (20 << 20)), "extraction_failed", "1,000 deep")
