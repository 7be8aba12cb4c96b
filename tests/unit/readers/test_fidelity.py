"""The report of the reading of a file."""

from __future__ import annotations

from email.message import EmailMessage

from kb_contracts.semantics.documents import fidelity_in_words
from kb_readers.delimited import read_delimited
from kb_readers.fidelity import fidelity_of
from kb_readers.mail import read_mail
from kb_readers.model import Extraction, Page


def test_attachments_of_a_mail_are_left_out() -> None:
    mail = EmailMessage()
    mail["From"], mail["To"] = "a@example.org", "b@example.org"
    mail.set_content("The granite is measured.")
    mail.add_attachment(b"%PDF", maintype="application", subtype="pdf", filename="invoice.pdf")
    assert fidelity_of(read_mail(mail.as_bytes())).left_out == ["invoice.pdf"]


def test_columns_are_a_guess_unless_the_file_names_its_separator() -> None:
    rows = b"stone;weight;place\ngranite;3;valley\n"
    assert fidelity_of(read_delimited(rows)).columns == 3
    assert fidelity_of(read_delimited(b"sep=;\n" + rows)).columns is None


def test_pages_by_ocr_and_without_text_are_counted_in_words() -> None:
    pages = [Page(1, "granite"), Page(2, " "), Page(3, "basalt")]
    extraction = Extraction(
        pages, None, "mixed_extraction", "application/pdf", ocr_confidences={3: 0.9, 1: 0.8}
    )
    report = fidelity_of(extraction)
    assert (report.ocr_pages, report.ocr_confidence, report.pages_without_text) == ([1, 3], 0.85, [2])
    assert fidelity_in_words(report) == ["pages by OCR: 2", "pages without text: 1", "confidence of OCR: 85%"]
