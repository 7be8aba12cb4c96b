"""An e-mail as text: sender, recipients, date and body; attachments are listed by name.

A message is a tree of parts. Leaves of plain text and HTML without a filename are read, of alternatives only
one; all other leaves are attachments.
"""

from __future__ import annotations

import codecs
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes, policy
from email.errors import CloseBoundaryNotFoundDefect
from email.message import EmailMessage

from kb_contracts.api.formats import FORMATS
from kb_readers.failures import damaged, unsafe
from kb_readers.html import encoding_named, find_encoding, markdown_of
from kb_readers.markdown import escaped, given_title, one_line
from kb_readers.model import Extraction, Page
from kb_readers.remarks import names_listed
from kb_readers.text import codec_named, decode, encoding_by_mark

_FORMAT = FORMATS["eml"]
_HEADERS = ("From", "To", "Cc", "Date")
_LONGEST_HEADER = 1_000
_DEEPEST = 100

_TEXTS = frozenset(["text/plain", "text/html"])
_OF_MAIL_ALONE = frozenset(
    """utf-7 utf-16 utf-16-le utf-16-be utf-32 utf-32-le utf-32-be iso2022_kr hz
    cp437 cp850 cp852""".split()  # noqa: SIM905 - read as words
)
"""Encodings in mail that no web page may use."""


def read_mail(data: bytes) -> Extraction:
    """Return the message as one page without a number; its subject is the title. Raises ExtractionFailed."""
    with _of_the_library():
        message = _parsed(data)
        headers = [(name, one_line(str(message[name] or ""))) for name in _HEADERS]
        title = given_title(str(message["Subject"] or ""))
        leaves = list(_leaves(message))
        attached = [_name(leaf) for leaf, within in leaves if not _is_text(leaf, within)]
        text = _text(message)
    if not any(value for _, value in headers):
        raise damaged(_FORMAT.label, "it says neither from whom nor to whom it is")
    head = "\n".join(escaped(f"{name}: {value[:_LONGEST_HEADER]}") for name, value in headers if value)
    names = names_listed(attached)
    parts = [f"# {title}" if title else "", head, text, f"Attachments: {names}" if names else ""]
    page = "\n\n".join(filter(None, parts)).replace("\0", "")
    is_cut_off = any(isinstance(each, CloseBoundaryNotFoundDefect) for each in message.defects)
    remarks = [
        "It may be cut off: the end of its last part is missing." if is_cut_off else "",
        "" if text else "There is no text below its headers.",
        f"Attachments are not read: {names}" if names else "",
    ]
    remark = " ".join(filter(None, remarks)) or None
    return Extraction([Page(None, page)], title, "text_extraction", _FORMAT.mime_type, remark)


def body_of(data: bytes) -> str:
    """Return the text of a message without its headers, as Markdown. Raises ExtractionFailed."""
    with _of_the_library():
        message = _parsed(data)
        for _ in _leaves(message):  # checks the depth
            pass
        return _text(message)


@contextmanager
def _of_the_library() -> Iterator[None]:
    """Convert exceptions of the library into ExtractionFailed."""
    try:
        yield
    except RecursionError:
        raise unsafe(_FORMAT.label, "parts or comments that are too deep") from None
    except (ValueError, LookupError, AttributeError, TypeError) as error:  # malformed headers
        raise damaged(_FORMAT.label, str(error)) from None


def _parsed(data: bytes) -> EmailMessage:
    message = message_from_bytes(data.removeprefix(codecs.BOM_UTF8).lstrip(), policy=policy.default)
    assert isinstance(message, EmailMessage), "what the policy makes"
    return message


def _is_multipart(part: EmailMessage) -> bool:
    """True by content type: an attached message has parts too, and does not count."""
    return part.get_content_maintype() == "multipart"


def _parts(part: EmailMessage) -> list[EmailMessage]:
    parts = part.get_payload()
    if not isinstance(parts, list):
        raise damaged(_FORMAT.label, "its parts are not where it says")
    return [each for each in parts if isinstance(each, EmailMessage)]


def _leaves(part: EmailMessage, within: str = "", depth: int = 0) -> Iterator[tuple[EmailMessage, str]]:
    """Yield the leaves in order, each with the kind of its multipart."""
    if depth > _DEEPEST:
        raise unsafe(_FORMAT.label, f"parts more than {_DEEPEST:,} deep")
    if not _is_multipart(part):
        yield part, within
        return
    for each in _parts(part):
        yield from _leaves(each, part.get_content_subtype(), depth + 1)


def _is_text(leaf: EmailMessage, within: str) -> bool:
    if leaf.get_content_type() not in _TEXTS or leaf.is_attachment():
        return False
    return within != "mixed" or not leaf.get_filename()


def _name(leaf: EmailMessage) -> str:
    return one_line(leaf.get_filename() or leaf.get_content_type())


def _text(part: EmailMessage, within: str = "") -> str:
    """Return all text of a part; of alternatives the first non-blank one, preferably plain text."""
    if not _is_multipart(part):
        return _text_of_leaf(part) if _is_text(part, within) else ""
    kind, parts = part.get_content_subtype(), _parts(part)
    if kind == "alternative":
        parts = sorted(parts, key=_has_html)
    texts = filter(None, (_text(each, kind) for each in parts))
    return next(texts, "") if kind == "alternative" else "\n\n".join(texts)


def _has_html(part: EmailMessage) -> bool:
    return any(leaf.get_content_type() == "text/html" for leaf, _ in _leaves(part))


def _text_of_leaf(leaf: EmailMessage) -> str:
    data, is_html = _bytes(leaf), leaf.get_content_subtype() == "html"
    text = decode(data, _encoding(leaf, data, is_html))
    return markdown_of(text).strip() if is_html else "\n".join(map(escaped, text.strip().splitlines()))


def _bytes(leaf: EmailMessage) -> bytes:
    transferred = leaf["Content-Transfer-Encoding"]
    if transferred is None or transferred.cte != "base64":
        data = leaf.get_payload(decode=True)
        assert isinstance(data, bytes), "what a leaf is made of"
        return data
    # The library decodes broken base64 partially, and stops at padding within it.
    try:
        return b64decode("".join(str(leaf.get_payload()).split()), validate=True)
    except ValueError:
        raise damaged(_FORMAT.label, "the base64 of its text is not whole") from None


def _encoding(leaf: EmailMessage, data: bytes, is_html: bool) -> str:
    """Return the declared encoding; without one, or for ASCII, UTF-8 or that of the HTML."""
    declared = leaf.get_content_charset() or "us-ascii"
    name = codec_named(declared)
    if name == "ascii":
        return find_encoding(data) if is_html else encoding_by_mark(data) or "utf-8"
    if name in _OF_MAIL_ALONE:
        return name
    return encoding_by_mark(data) or encoding_named(declared, "message")
