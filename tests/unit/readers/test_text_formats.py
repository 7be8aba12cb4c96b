"""AsciiDoc, Org, LaTeX, subtitles, notebooks and XML: their headings, texts and refusals."""

from __future__ import annotations

import json

import pytest

from kb_readers.failures import ExtractionFailed
from kb_readers.notebook import read_notebook
from kb_readers.outlines import read_outline
from kb_readers.subtitles import read_subtitles
from kb_readers.xml_text import read_xml
from tests.support.reading import Read, only_text, reader_of, refusal

read_asciidoc, read_org, read_latex = (reader_of(read_outline, name) for name in ("adoc", "org", "tex"))


@pytest.mark.parametrize(
    ("read", "source", "title", "text"),
    [
        (read_asciidoc, "= Stones\n\n== Hard\nx\n", "Stones", "# Stones\n\n## Hard\nx"),
        (read_asciidoc, "----\n== code\n----\n== Soft", None, "\\----\n== code\n\\----\n## Soft"),
        (read_asciidoc, "# Stones", "Stones", "# Stones"),
        (read_org, "#+TITLE: Of Stones\n* TODO Hard :a:b:\n** Soft", "Of Stones",
         "#+TITLE: Of Stones\n# Hard\n## Soft"),
        (read_org, "#+begin_src\n* code\n#+end_src\n* A", "A", "#+begin_src\n* code\n#+end_src\n# A"),
        (read_org, "*bold* text\n# a comment", None, "*bold* text\n\\# a comment"),
        (read_latex, "\\title{Of \\emph{Stones}}\n\\section*{Hard {R}}\\label{h}", "Of Stones",
         "\\title{Of \\emph{Stones}}\n## Hard R\n\\label{h}"),
        (read_latex, "\\begin{verbatim}\n\\section{A}\n\\end{verbatim}\n\\chapter[s]{B}", "B",
         "\\begin{verbatim}\n\\section{A}\n\\end{verbatim}\n# B"),
        (read_latex, "\\section{" + "{" * 600, None, "\\section{" + "{" * 600),
        (read_subtitles, "WEBVTT\n\n00:01.000 --> 00:02.000\n<v Ann>Hard &amp; <b>soft</b>\n", None,
         "## 00:00\n\nAnn: Hard & soft"),
        (read_subtitles, "1\n1:02:03,000 --> 1:02:04,000\nHard\n\n1:02:04,000 --> 1:02:05,000\nHard\nSoft\n",
         None, "## 01:02\n\nHard\nSoft"),
        (read_subtitles, "WEBVTT\n\nNOTE left out\n", None, ""),
        (read_xml, '<a x="1">Hard <b>stones</b># soft</a>', None, "Hard\nstones\n\\# soft"),
    ],
)  # fmt: skip
def test_sections_of_a_marked_text_are_headings(
    read: Read, source: str, title: str | None, text: str
) -> None:
    assert only_text(read, source.encode()) == text
    assert read(source.encode()).title == title


@pytest.mark.parametrize(
    ("source", "word"),
    [
        ('<!DOCTYPE a [<!ENTITY x "y"><!ENTITY z "&x;&x;">]><a>&z;</a>', "entities that grow"),
        ('<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><a>&x;</a>', "entities"),
        ('<!DOCTYPE a [<!ENTITY % x SYSTEM "http://127.0.0.1/">%x;]><a/>', "entities"),
        ("<a>" * 2_000, "deep"),
        ("<a>", "damaged"),
        ('<?xml version="1.0" encoding="ISO-8859-8-I"?><a/>', "damaged"),
        ("", "damaged"),
    ],
)
def test_hostile_and_damaged_xml_is_refused_with_a_reason(source: str, word: str) -> None:
    assert word in refusal(read_xml, source.encode()).message


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_byte_order_mark_overrides_the_declaration_of_an_xml_file(encoding: str) -> None:
    data = '<?xml version="1.0" encoding="windows-1252"?><a>Köln</a>'.encode(encoding)
    assert only_text(read_xml, data) == "Köln"


def test_short_entities_of_an_xml_file_are_put_in() -> None:
    source = '<!DOCTYPE a [<!ENTITY who "Ada"><!ENTITY line "<b>wrote</b>">]><a>&who;&line; it</a>'
    assert only_text(read_xml, source.encode()) == "Ada\nwrote\nit"


def test_an_unparsed_entity_of_an_xml_file_is_not_read() -> None:
    declared = '<!NOTATION tif SYSTEM "viewer"><!ENTITY f1 SYSTEM "/etc/passwd" NDATA tif>'
    assert only_text(read_xml, f"<!DOCTYPE a [{declared}]><a>Claims</a>".encode()) == "Claims"


def notebook(*cells: object, **more: object) -> bytes:
    return json.dumps({"cells": cells, "metadata": {"language_info": {"name": "python"}}, **more}).encode()


def test_a_notebook_is_its_cells_and_the_text_of_their_outputs() -> None:
    found = read_notebook(
        notebook(
            {"cell_type": "markdown", "source": ["# Stones\n", "Granite."]},
            {
                "cell_type": "code",
                "source": "weigh()",
                "outputs": [
                    {"output_type": "stream", "text": ["7\n"]},
                    {"output_type": "execute_result", "data": {"text/plain": "'kg'", "image/png": "iVBO"}},
                    {"output_type": "error", "ename": "ValueError", "evalue": "too \x1b[31mheavy\x1b[0m"},
                ],
            },
        )
    )
    assert found.title == "Stones"
    assert found.pages[0].text == (
        "# Stones\nGranite.\n\n```python\nweigh()\n```\n\n```\n7\n```\n\n```\n'kg'\n```\n\n"
        "```\nValueError: too heavy\n```"
    )


def test_a_notebook_of_format_3_is_read() -> None:
    old = {
        "worksheets": [{"cells": [{"cell_type": "heading", "level": 2, "source": "Hard"}, {"input": "x"}]}]
    }
    assert only_text(read_notebook, json.dumps(old).encode()) == "## Hard\n\n```\nx\n```"


def test_members_of_a_notebook_that_are_not_read_do_not_matter() -> None:
    source = (
        b'{"metadata": {"title": null, "language_info": {"name": null}}, "cells": [{"source": "x", '
        b'"outputs": [{"data": {"text/plain": {}, "application/json": NaN}}]}, 1]}'
    )
    assert only_text(read_notebook, source) == "```\nx\n```"


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"a": 1}', b'{"cells":' * 2_000 + b"["])
def test_a_damaged_notebook_is_refused(data: bytes) -> None:
    with pytest.raises(ExtractionFailed):
        read_notebook(data)
