"""The question set of `bench manuals`, made from small pages."""

from __future__ import annotations

from bench.manuals import manual, set_of

ROFF = r"""
.\" A comment
.TH LS 1
.SH BEZEICHNUNG
ls \- Verzeichnisinhalte auflisten
.SH ÜBERSICHT
\fBls\fP [\fIOPTION\fP]
.SH BESCHREIBUNG
.PP
Das Programm \fBls\fP kann Verzeichnisinhalte auflisten, mit
.BR dir (1)
verwandt.
"""


def test_a_question_is_the_subject_of_a_page_and_is_removed_from_its_text() -> None:
    long = ROFF + "Die Einträge werden sortiert. " * 20
    made = set_of({"de": {"ls.1": long, "short.1": ROFF}})
    assert [(each.text, each.kind, each.answer) for each in made.questions] == [
        ("Verzeichnisinhalte auflisten", "de", "de/ls.1")
    ]
    title, text = made.documents["de/ls.1"]
    assert title == "ls.1"
    assert text.startswith("# BESCHREIBUNG\n\n\nDas Programm ls kann , mit\ndir(1)\nverwandt.")
    assert "OPTION" not in text
    assert manual("empty.1", ".SH NAME\nnothing here\n") is None
