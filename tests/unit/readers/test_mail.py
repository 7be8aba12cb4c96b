"""E-mail: who, to whom, when, what; and what is not read is named."""

from __future__ import annotations

from contextlib import suppress
from email.message import EmailMessage
from functools import partial

import pytest

from kb_readers.failures import ExtractionFailed
from kb_readers.mail import read_mail
from tests.support.reading import only_text, refusal

text = partial(only_text, read_mail)
refused = partial(refusal, read_mail)


NESTED = b"Content-Type: multipart/mixed; boundary=a\n\n" + 80 * (
    b"--a\nContent-Type: multipart/mixed; boundary=a\n\n"
)


def message(**headers: str) -> EmailMessage:
    mail = EmailMessage()
    for name, value in ({"From": "Ada <ada@example.org>", "To": "bob@example.org"} | headers).items():
        mail[name] = value
    return mail


def test_a_mail_is_its_head_and_its_text() -> None:
    mail = message(Subject="Stones of Größe", Date="Mon, 23 Nov 2026 10:00:00 +0000", Bcc="eve@example.org")
    mail.set_content("Granite is hard.\n# no heading\n")
    found = read_mail(mail.as_bytes())
    assert (found.title, found.remark) == ("Stones of Größe", None)
    assert found.pages[0].text == (
        "# Stones of Größe\n\nFrom: Ada <ada@example.org>\nTo: bob@example.org\n"
        "Date: Mon, 23 Nov 2026 10:00:00 +0000\n\nGranite is hard.\n\\# no heading"
    )


def test_of_two_forms_the_plain_one_is_read_and_html_where_it_is_alone() -> None:
    both = message()
    both.set_content("plain granite")
    both.add_alternative("<p>rich granite</p>", subtype="html")
    assert "plain granite" in text(both.as_bytes())
    assert "rich" not in text(both.as_bytes())
    rich = message()
    rich.set_content("<h2>Stones</h2><script>x()</script><p>rich <b>granite</b></p>", subtype="html")
    assert "## Stones\n\nrich granite" in text(rich.as_bytes())
    assert "x()" not in text(rich.as_bytes())


def test_attachments_are_named_and_not_read() -> None:
    mail = message()
    mail.set_content("see there")
    mail.add_attachment(b"zircon", maintype="application", subtype="pdf", filename="a  b.pdf")
    found = read_mail(mail.as_bytes())
    assert found.remark == "Attachments are not read: a b.pdf"
    assert found.pages[0].text.endswith("see there\n\nAttachments: a b.pdf")
    assert "zircon" not in found.pages[0].text


@pytest.mark.parametrize(
    "data",
    [b"", b"granite", b"\xff\xfe\x00\x01" * 100, b"Subject: alone\n\ngranite", b"\n\nFrom: below\n"],
    ids=["nothing", "no header", "garbage", "nobody", "a header too late"],
)
def test_what_is_no_mail_is_refused(data: bytes) -> None:
    assert refused(data).code == "file_corrupt"


@pytest.mark.parametrize(
    "body",
    [
        b"Content-Type: text/plain; charset=nonsense\n\ngranite",
        b"Content-Type: multipart/mixed; boundary=\n\ngranite",
        b"Content-Type: multipart/mixed; boundary=x\n\n--x\n",
        b"Content-Transfer-Encoding: base64\n\n!!!not base64!!!",
        NESTED,
        b"Subject: =?utf-8?b?" + b"QQ" * 50_000 + b"?=\n\ngranite",
        b"References: " + b"<a@b> " * 50_000 + b"\n\ngranite",
    ],
)  # fmt: skip
def test_an_odd_mail_is_read_or_refused_and_nothing_falls_over(body: bytes) -> None:
    data = b"From: ada@example.org\n" + body
    with suppress(ExtractionFailed):
        assert text(data).startswith(("From: ada@example.org", "# "))
