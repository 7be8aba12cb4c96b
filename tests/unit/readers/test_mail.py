"""E-mail: sender, recipients, date, text, and a list of unread parts."""

from __future__ import annotations

from base64 import b64encode
from contextlib import suppress
from email.message import EmailMessage
from functools import partial

import pytest

from kb_readers.failures import ExtractionFailed
from kb_readers.mail import read_mail
from kb_readers.markdown import headings
from kb_readers.mhtml import read_mhtml
from tests.support.reading import only_text, refusal

text = partial(only_text, read_mail)
refused = partial(refusal, read_mail)


NESTED = b"Content-Type: multipart/mixed; boundary=a\n\n" + 80 * (
    b"--a\nContent-Type: multipart/mixed; boundary=a\n\n"
)


HEAD = b"From: ada@example.org\n"
READ = "From: ada@example.org"
PDF = b"Content-Type: application/pdf\nContent-Disposition: %s; filename=%s.pdf\n\n%%PDF\n"
PLAIN = b"Content-Type: text/plain\n\n%s\n"
HTML = b"Content-Type: text/html\n\n<p>%s</p>\n"


def multipart(subtype: str, *parts: bytes) -> bytes:
    mark = f"{subtype}-{len(parts)}".encode()
    head = b"Content-Type: multipart/%s; boundary=%s\n\n" % (subtype.encode(), mark)
    return head + b"".join(b"--%s\n%s\n" % (mark, part) for part in parts) + b"--%s--\n" % mark


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


def test_no_line_of_plain_text_is_a_heading_or_opens_a_fence() -> None:
    mail = HEAD + b"\n     # first\n  ## second\n -\n   ~~~\n    # code\n- item\n"
    found = text(mail)
    assert found == f"{READ}\n\n\\# first\n  \\## second\n \\-\n   \\~~~\n    # code\n- item"
    assert not list(headings(f"{found}\n\nlast\n"))


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
    ("parts", "words", "names"),
    [
        (
            multipart(
                "alternative",
                PLAIN % b"granite",
                multipart("mixed", HTML % b"rich", PDF % (b"inline", b"invoice")),
            ),
            "granite",
            "invoice.pdf",
        ),
        (
            multipart("mixed", PLAIN % b"granite", PDF % (b"attachment", b"a"), HTML % b"<b>marble</b>"),
            "granite\n\nmarble",
            "a.pdf",
        ),
        (multipart("alternative", PLAIN % b" \n\n", HTML % b"rich"), "rich", ""),
        (multipart("alternative", HTML % b"rich", PLAIN % b"granite"), "granite", ""),
        (
            multipart(
                "signed",
                multipart("mixed", PLAIN % b"granite", PDF % (b"attachment", b"contract")),
                b"Content-Type: application/pkcs7-signature; name=smime.p7s\n\nx\n",
            ),
            "granite",
            "contract.pdf, smime.p7s",
        ),
        (
            multipart("related", multipart("mixed", PLAIN % b"granite", PDF % (b"attachment", b"z"))),
            "granite",
            "z.pdf",
        ),
        (
            multipart(
                "mixed",
                PLAIN % b"granite",
                b"Content-Type: text/plain; name=notes.txt\n\nquartz\n",
                b"Content-Type: message/partial\n\nSubject: x\n\nquartz\n",
            ),
            "granite",
            "notes.txt, message/partial",
        ),
        (
            multipart("mixed", PLAIN % b"granite", *[PDF % (b"attachment", b"a")] * 52),
            "granite",
            ", ".join(["a.pdf"] * 50) + " and 2 more",
        ),
    ],
    ids=["Apple's", "around one", "blank plain", "plain last", "signed", "related", "partial", "many"],
)
def test_each_part_of_a_mail_is_read_or_named(parts: bytes, words: str, names: str) -> None:
    found = read_mail(HEAD + parts)
    assert found.remark == (f"Attachments are not read: {names}" if names else None)
    attached = f"\n\nAttachments: {names}" if names else ""
    assert found.pages[0].text == f"{READ}\n\n{words}{attached}"


@pytest.mark.parametrize(
    ("part", "name"),
    [
        (PDF % (b"inline", b"a"), "a.pdf"),
        (b"Content-Type: text/calendar\n\nBEGIN:VCALENDAR\n", "text/calendar"),
        (b"Content-Disposition: attachment; filename=a.txt\n\ngranite\n", "a.txt"),
    ],
    ids=["PDF", "calendar", "text"],
)
def test_a_mail_that_is_an_attachment_names_it_and_says_that_there_is_no_text(part: bytes, name: str) -> None:
    found = read_mail(HEAD + part)
    assert found.remark == f"There is no text below its headers. Attachments are not read: {name}"
    assert found.pages[0].text == f"{READ}\n\nAttachments: {name}"


def test_a_blank_mail_says_that_there_is_no_text() -> None:
    found = read_mail(HEAD + b"\n \n")
    assert (found.pages[0].text, found.remark) == (READ, "There is no text below its headers.")


@pytest.mark.parametrize(
    ("head", "body"),
    [
        (b"", "Größe".encode()),
        (b"Content-Type: text/plain; charset=us-ascii\nContent-Transfer-Encoding: 8bit\n", "Größe".encode()),
        (b"Content-Type: text/plain; charset=utf-8\n", b"\xef\xbb\xbf" + "Größe".encode()),
        (b"Content-Type: text/html\n", '<meta charset="utf-8"><p>Größe</p>'.encode()),
        (b"Content-Type: text/html\n", "<p>Größe</p>".encode()),
        (b"Content-Type: text/html\n", '<meta charset="iso-8859-1"><p>Größe</p>'.encode("cp1252")),
        (b"Content-Type: text/html; charset=iso-8859-1\n", "<p>Größe</p>".encode("cp1252")),
        (b"Content-Type: text/plain; charset=iso-8859-1\n", "“Größe”".encode("cp1252")),
        (b"Content-Type: text/plain; charset=gb2312\n", "镕堃".encode("gbk")),
        (b"Content-Type: text/plain; charset=ISO-2022-KR\n", "한국어".encode("iso2022_kr")),
        (
            b"Content-Type: text/plain; charset=utf-16\nContent-Transfer-Encoding: base64\n",
            b64encode("Größe".encode("utf-16")),
        ),
        (b"Content-Transfer-Encoding: base64\n", b"R3LDtsOf\n \t ZQ==\n"),
    ],
)
def test_the_text_is_in_the_encoding_that_is_declared_or_utf_8(head: bytes, body: bytes) -> None:
    words = text(HEAD + head + b"\n" + body).removeprefix(f"{READ}\n\n")
    assert words.strip("“”") in ("Größe", "镕堃", "한국어")


@pytest.mark.parametrize(
    ("head", "body", "why"),
    [
        (b"", "Größe".encode("latin-1"), "is not UTF-8 text"),
        (b"Content-Type: text/plain; charset=utf-8\n", "Größe".encode("latin-1"), "is not UTF-8 text"),
        (b"Content-Type: text/html\n", "Größe".encode("latin-1"), "is not UTF-8 text"),
        (b"Content-Type: text/plain; charset=gb2312\n", b"\xff\xff", "is not GB18030 text"),
        (b"Content-Type: text/plain; charset=x-foo\n", b"gr\xe4nite", "an encoding that is not read: x-foo"),
        (b"Content-Type: text/plain; charset=x-foo\n", b"\x1b$)A\x0e=;;;\x0f", "that is not read: x-foo"),
        (b"Content-Type: text/html; charset=rot13\n", b"gr\xe4nite", "an encoding that is not read: rot13"),
    ],
)  # fmt: skip
def test_text_that_cannot_be_decoded_is_refused(head: bytes, body: bytes, why: str) -> None:
    refused(HEAD + head + b"\n" + body, "undecodable_text", why)


@pytest.mark.parametrize("before", [b"\xef\xbb\xbf", b"\n\r\n", b"\xef\xbb\xbf\r\n"])
def test_a_mark_and_empty_lines_before_the_headers_are_passed_over(before: bytes) -> None:
    assert text(before + HEAD + b"\ngranite\n") == f"{READ}\n\ngranite"


@pytest.mark.parametrize(
    "part",
    [
        b"Content-Transfer-Encoding: base64\n\n" + b64encode(b"granite and marble")[:-3],
        b"Content-Transfer-Encoding: base64\n\nZ3Jhbml0ZQ==\n-- \nSent by nobody!\n",
        multipart("mixed", b"Content-Transfer-Encoding: base64\n\n!Z3Jhbml0ZQ==\n"),
        b"Content-Type: multipart/mixed\n\n--a\n\ngranite\n",
        multipart("mixed", b"Content-Type: multipart/mixed; boundary=x\n\n--a\n\ngranite\n"),
    ],
    ids=["base64 cut off", "text below base64", "rubbish in base64", "no boundary", "boundary not found"],
)
def test_a_damaged_part_is_refused(part: bytes) -> None:
    assert refused(HEAD + part).code == "file_corrupt"


def test_a_mail_of_parts_that_ends_before_they_do_says_that_it_may_be_cut_off() -> None:
    whole = HEAD + multipart("mixed", PLAIN % b"granite and marble")
    assert read_mail(whole).remark is None
    found = read_mail(whole[: whole.index(b" marble")])
    assert found.pages[0].text == f"{READ}\n\ngranite and"
    assert found.remark == "It may be cut off: the end of its last part is missing."


@pytest.mark.parametrize("deep", [110, 3_000])
def test_parts_within_parts_without_end_are_refused(deep: int) -> None:
    heads = (b"Content-Type: multipart/mixed; boundary=b%d\n\n--b%d\n" % (each, each) for each in range(deep))
    refused(HEAD + b"".join(heads) + b"\ngranite\n", "extraction_failed", "deep")


@pytest.mark.parametrize(
    "data",
    [b"", b"granite", b"\xff\xfe\x00\x01" * 100, b"Subject: alone\n\ngranite", b"x\n\nFrom: below\n"],
    ids=["nothing", "no header", "garbage", "nobody", "a header too late"],
)
def test_a_file_that_is_no_mail_is_refused(data: bytes) -> None:
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


STUB = b"Your program does not show HTML. Open this message in a browser."
WORDS = " ".join(f"stone{number}" for number in range(100)).encode()


@pytest.mark.parametrize(
    ("plain", "rich", "read"),
    [
        (b"See the stones: " + WORDS[:50], WORDS, "stone99"),
        (STUB, b"Amount due: 249.00 EUR, payable until 15 April to account DE02, with thanks", "249.00 EUR"),
    ],
    ids=["many more words", "other words"],
)
@pytest.mark.parametrize("order", [1, -1])
def test_html_is_read_if_the_plain_text_is_a_stub(plain: bytes, rich: bytes, read: str, order: int) -> None:
    parts = [PLAIN % plain, HTML % rich]
    assert read in text(HEAD + multipart("alternative", *parts[::order]))


def test_html_is_not_read_if_it_only_adds_to_the_plain_text() -> None:
    both = multipart("alternative", PLAIN % WORDS, HTML % (WORDS + b" <p>Unsubscribe from marble here"))
    assert "marble" not in text(HEAD + both)


def test_a_mail_read_from_its_html_has_a_remark() -> None:
    found = read_mail(HEAD + multipart("alternative", PLAIN % b"stone1", HTML % WORDS))
    assert found.remark == "Its HTML was read instead of its plain text, which has far fewer words."


def test_a_form_of_the_text_that_cannot_be_decoded_does_not_hide_the_other_form() -> None:
    found = read_mail(HEAD + multipart("alternative", PLAIN % b"granite", HTML % b"\xff"))
    assert found.pages[0].text == f"{READ}\n\ngranite"
    assert found.remark == "One of the forms of its text cannot be decoded and was not read."


INNER = b"From: eve@example.org\nSubject: Stones\n\nquartz\n"
INNER_READ = "## Stones\n\nFrom: eve@example.org\n\nquartz"


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (b"Content-Type: message/rfc822\n\n" + INNER, INNER_READ),
        (
            b"Content-Type: message/rfc822\nContent-Disposition: attachment; filename=a.eml\n\n" + INNER,
            INNER_READ,
        ),
        (
            b"Content-Type: message/rfc822\nContent-Transfer-Encoding: base64\n\n" + b64encode(INNER),
            INNER_READ,
        ),
        (multipart("digest", b"\n" + INNER, b"\n" + INNER), f"{INNER_READ}\n\n{INNER_READ}"),
        (
            multipart(
                "report",
                PLAIN % b"Not delivered.",
                b"Content-Type: message/delivery-status\n\nReporting-MTA: dns; example.org\n\n"
                b"Final-Recipient: rfc822; eve@example.org\nStatus: 5.1.1\n",
                b"Content-Type: text/rfc822-headers\n\nSubject: Stones\n",
            ),
            "Not delivered.\n\nReporting-MTA: dns; example.org\n\n"
            "Final-Recipient: rfc822; eve@example.org\nStatus: 5.1.1\n\nSubject: Stones",
        ),
    ],
    ids=["forwarded", "attached", "base64", "digest", "bounce"],
)
def test_a_message_within_a_message_is_read(part: bytes, words: str) -> None:
    found = read_mail(HEAD + part)
    assert found.pages[0].text == f"{READ}\n\n{words}"
    assert found.remark is None


def test_attachments_of_a_message_within_a_message_are_named() -> None:
    inner = b"Content-Type: message/rfc822\n\n" + HEAD + multipart("mixed", PDF % (b"attachment", b"a"))
    found = read_mail(HEAD + multipart("mixed", PLAIN % b"granite", inner))
    assert found.remark == "Attachments are not read: a.pdf"


def test_a_damaged_message_within_a_message_is_named_and_the_rest_is_read() -> None:
    inner = b"Content-Type: message/rfc822\n\n" + HEAD + b"Content-Transfer-Encoding: base64\n\n!\n"
    found = read_mail(HEAD + multipart("mixed", PLAIN % b"granite", inner))
    assert found.pages[0].text == f"{READ}\n\ngranite\n\nAttachments: message/rfc822"


@pytest.mark.parametrize("deep", [110, 3_000])
def test_messages_within_messages_without_end_are_refused(deep: int) -> None:
    refused(HEAD + b"Content-Type: message/rfc822\n\n" * deep + INNER, "extraction_failed", "deep")


def test_messages_over_the_limit_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kb_readers.mail._MOST_MESSAGES", 2)
    found = read_mail(HEAD + multipart("digest", *[b"\n" + INNER] * 3))
    assert found.pages[0].text.count("quartz") == 2
    assert found.remark == "Attachments are not read: message/rfc822"


@pytest.mark.parametrize("boundary", ["----=_NextPart_000_0023.4EF", "a/b:c?d", "=_(x)@y"])
def test_a_boundary_needs_no_quotation_marks(boundary: str) -> None:
    mail = (
        f"Content-Type: multipart/mixed;\n\tBoundary={boundary};\n\tx=y\n\n"
        f"--{boundary}\n\ngranite\n--{boundary}--\n"
    )
    assert text(HEAD + mail.encode()) == f"{READ}\n\ngranite"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_a_text_in_utf_16_is_read(encoding: str) -> None:
    body = (
        "\ufeffGröße\nGranit".encode(encoding) if encoding != "utf-16" else "Größe\nGranit".encode(encoding)
    )
    head = f"Content-Type: text/plain; charset={encoding}\nContent-Transfer-Encoding: ".encode()
    for coded in (b"base64\n\n" + b64encode(body), b"8bit\n\n" + body):
        assert text(HEAD + head + coded) == f"{READ}\n\nGröße\nGranit"


@pytest.mark.parametrize("declared", ["iso-8859-1", "utf-8"])
def test_a_mail_that_was_saved_as_utf_16_is_read(declared: str) -> None:
    mail = f"{READ}\nContent-Type: text/plain; charset={declared}\nContent-Transfer-Encoding: 8bit\n\nGröße"
    assert text(mail.encode("utf-16")) == f"{READ}\n\nGröße"


@pytest.mark.parametrize("charset", ["x-unknown", "default", "rot13"])
def test_ascii_is_read_under_any_name_of_a_character_set(charset: str) -> None:
    assert text(HEAD + f"Content-Type: text/plain; charset={charset}\n\ngranite".encode()).endswith("granite")


@pytest.mark.parametrize(
    ("parameters", "body", "read"),
    [
        ("", "one \ntwo", "one \ntwo"),
        ("; format=flowed", "one \ntwo\nthree", "one two\nthree"),
        ("; format=Flowed; delsp=Yes", "gra \nnite", "granite"),
        ("; format=flowed", ">> one \n>> two \n> three\n> >four", ">> one two \n> three\n> >four"),
        ("; format=flowed", " >one\n From x", ">one\nFrom x"),
        ("; format=flowed", "one \n-- \nAda", "one \n\\-- \nAda"),
    ],
    ids=["fixed", "paragraph", "no space", "quotation", "stuffed", "signature"],
)
def test_flowed_lines_are_joined(parameters: str, body: str, read: str) -> None:
    mail = f"{READ}\nContent-Type: text/plain{parameters}\n\n{body}"
    assert text(mail.encode()) == f"{READ}\n\n{read}"


PAGE = b"Content-Type: text/html; charset=koi8-r\nContent-ID: <%s>\n\n<title>Of %s</title>%s\n"
PICTURE = b"Content-Type: image/png\nContent-ID: <cid:1>\n\nx\n"


def saved(*parts: bytes) -> bytes:
    head = b'Content-Type: multipart/related; start="<root>"; boundary=b\n\n'
    return HEAD + head + b"".join(b"--b\n%s\n" % part for part in parts) + b"--b--\n"


def test_a_saved_page_is_its_html_without_frames_and_pictures() -> None:
    found = read_mhtml(
        saved(PAGE % (b"frame", b"x", b"advert"), PICTURE, PAGE % (b"root", b"Stones", b"\xcb<img alt=map>"))
    )
    assert (found.title, found.pages[0].text) == ("Of Stones", "к map")
    assert found.remark == "Frames of the page are not read: 1"


def test_a_saved_page_of_frames_alone_is_their_text() -> None:
    parts = [
        PAGE % (b"root", b"Stones", b"<frameset>"),
        PAGE % (b"a", b"a", b"hard"),
        PAGE % (b"b", b"b", b"soft"),
    ]
    assert only_text(read_mhtml, saved(*parts)) == "hard\n\nsoft"
    assert refusal(read_mhtml, saved(PICTURE)).code == "file_corrupt"


def test_a_frame_that_cannot_be_decoded_does_not_fail_the_page() -> None:
    frame = b"Content-Type: text/html\nContent-Transfer-Encoding: 8bit\n\n<p>ad \xff\xfe</p>\n"
    found = read_mhtml(saved(PAGE % (b"root", b"Stones", b"hard"), frame))
    assert (found.pages[0].text, found.left_out) == ("hard", ["frame 1"])
