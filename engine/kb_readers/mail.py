"""An e-mail as text: sender, recipients, date and body; attachments are listed by name.

A message is a tree of parts. Leaves of plain text and HTML without a filename are read; attached messages and
the reports of mail servers are read as messages within the message; all other leaves are attachments. Of
alternatives the plain text is read, unless it is a stub beside the HTML.
"""

from __future__ import annotations

import codecs
import re
from base64 import b64decode
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from email import message_from_bytes
from email.errors import CloseBoundaryNotFoundDefect
from email.message import EmailMessage
from email.policy import EmailPolicy

from kb_contracts.api.formats import FORMATS, Format
from kb_readers.failures import ExtractionFailed, damaged, unsafe
from kb_readers.html import encoding_named, find_encoding, markdown_of
from kb_readers.markdown import escaped, given_title, one_line
from kb_readers.model import Extraction, TextBudget
from kb_readers.remarks import names_listed
from kb_readers.text import codec_named, decode, encoding_by_mark

_FORMAT = FORMATS["eml"]
_HEADERS = ("From", "To", "Cc", "Date")
_LONGEST_HEADER = 1_000
_DEEPEST = 100
_MOST_MESSAGES = 1_000  # maximum number of messages within a message that are read

_TEXTS = frozenset(["text/plain", "text/html", "text/rfc822-headers"])
_PAGES = frozenset(["text/html", "application/xhtml+xml"])
_MESSAGES = frozenset(["message/rfc822", "message/global", "message/news"])
_REPORTS = frozenset(
    """message/delivery-status message/global-delivery-status message/disposition-notification
    message/global-disposition-notification message/feedback-report""".split()  # noqa: SIM905 - read as words
)
"""Blocks of header fields, by which programs report on a message."""
NOT_OF_THE_WHOLE = frozenset(["undecodable_text", "file_corrupt"])
FORM_NOT_READ = "One of the forms of its text cannot be decoded and was not read."
"""Failures of one form of a text, or of one message within another, beside which the rest is read."""

_TIMES, _MORE = 3, 50
"""The HTML replaces the plain text from so many times its words, if it also has so many words more."""

_UNQUOTED = re.compile(r"(;\s*boundary\s*=\s*)([^\s\";]+)", re.IGNORECASE)
_WORD = re.compile(r"\w+")
_ESCAPE = b"\x1b"  # begins the other characters of a seven-bit encoding

_OF_MAIL_ALONE = frozenset(
    """utf-7 utf-16 utf-16-le utf-16-be utf-32 utf-32-le utf-32-be iso2022_kr hz
    cp437 cp850 cp852""".split()  # noqa: SIM905 - read as words
)
"""Encodings in mail that no web page may use."""


class _Policy(EmailPolicy):
    """Lets a boundary have any characters without quotation marks, as mail programs do."""

    def header_source_parse(self, sourcelines: list[str]) -> tuple[str, str]:
        name, value = super().header_source_parse(sourcelines)
        return name, _UNQUOTED.sub(r'\1"\2"', value) if name.lower() == "content-type" else value


_POLICY = _Policy()


def read_mail(data: bytes) -> Extraction:
    """Return the message as one page without a number; its subject is the title. Raises ExtractionFailed."""
    with _of_the_library():
        reading = _Reading(data)
        title, head = _title(reading.message), _head(reading.message)
        text = reading.text()
    if not head:
        raise damaged(_FORMAT.label, "it says neither from whom nor to whom it is")
    cut_off = "It may be cut off: the end of its last part is missing." if reading.is_cut_off else ""
    return extraction_of(_FORMAT, title, head, text, reading.unread, [cut_off, *reading.remarks])


def extraction_of(
    fmt: Format, title: str | None, head: str, text: str, unread: Sequence[str], remarks: Sequence[str]
) -> Extraction:
    """Return a message as one page; `unread` names the parts that are not read."""
    names = names_listed(unread)
    parts = [f"# {title}" if title else "", head, text, f"Attachments: {names}" if names else ""]
    page = "\n\n".join(filter(None, parts)).replace("\0", "")
    found = [
        "" if text else "There is no text below its headers.",
        *dict.fromkeys(remarks),
        f"Attachments are not read: {names}" if names else "",
    ]
    remark = " ".join(filter(None, found)) or None
    return Extraction.of_text(fmt, page, title, remark, unread)


def within_message(title: str | None, head: str, text: str) -> str:
    """Return a message within a message, under its subject."""
    return "\n\n".join(filter(None, [f"## {title}" if title else "", head, text]))


def body_of(data: bytes) -> str:
    """Return the text of a message without its headers, as Markdown. Raises ExtractionFailed."""
    with _of_the_library():
        return _Reading(data).text()


def pages_in(data: bytes, fmt: Format) -> Iterator[str]:
    """Yield the HTML of a page saved as a message, and of its frames; "" for one that cannot be decoded.
    Raises ExtractionFailed: the file is damaged, or its first page cannot be decoded.
    """
    with _of_the_library(fmt):
        reading = _Reading(data)
        root = reading.message.get_param("start")
        leaves = [leaf for leaf in reading.message.walk() if leaf.get_content_type() in _PAGES]
        leaves.sort(key=lambda leaf: leaf["Content-ID"] != root)
        for number, leaf in enumerate(leaves):
            try:
                yield reading.decoded(leaf, is_html=True)
            except ExtractionFailed as failed:
                if not number or failed.code not in NOT_OF_THE_WHOLE:
                    raise
                yield ""


@contextmanager
def _of_the_library(fmt: Format = _FORMAT) -> Iterator[None]:
    """Convert exceptions of the library into ExtractionFailed."""
    try:
        yield
    except RecursionError:
        raise unsafe(fmt.label, "parts or comments that are too deep") from None
    except (ValueError, LookupError, AttributeError, TypeError) as error:  # malformed headers
        raise damaged(fmt.label, str(error)) from None


def _parsed(data: bytes) -> EmailMessage:
    message = message_from_bytes(data.removeprefix(codecs.BOM_UTF8).lstrip(), policy=_POLICY)
    assert isinstance(message, EmailMessage), "what the policy makes"
    return message


class _Reading:
    """The text of one message, with the names of the parts that are not read."""

    def __init__(self, data: bytes) -> None:
        marked = encoding_by_mark(data)
        self._is_wide = marked in ("utf-16", "utf-32")
        self.message = _parsed(data.decode(marked).encode() if marked and self._is_wide else data)
        self.unread: list[str] = []
        self.remarks: list[str] = []
        self.is_cut_off = False
        self._messages = 0
        self._budget = TextBudget()

    def text(self) -> str:
        """Return the text below the headers; read it once."""
        return self._text(self.message, "", 0)

    def _text(self, part: EmailMessage, within: str, depth: int) -> str:
        """Return all text of a part that is inside a multipart of the kind `within`."""
        if depth > _DEEPEST:
            raise unsafe(_FORMAT.label, f"parts more than {_DEEPEST:,} deep")
        if part.get_content_maintype() == "multipart":
            return self._text_of_parts(part, depth + 1)
        kind = part.get_content_type()
        if kind in _MESSAGES:
            return self._text_of_message(part, depth + 1)
        if kind in _REPORTS and isinstance(part.get_payload(), list):
            return "\n\n".join(filter(None, map(_fields, _parts(part))))
        if not _is_text(part, within):
            self.unread.append(_name(part))
            return ""
        text = self._text_of_leaf(part)
        self._budget.spend(text)
        return text

    def _text_of_parts(self, part: EmailMessage, depth: int) -> str:
        if any(isinstance(each, CloseBoundaryNotFoundDefect) for each in part.defects):
            self.is_cut_off = True
        kind, parts = part.get_content_subtype(), _parts(part)
        if kind == "alternative":
            return self._text_of_alternatives(parts, depth)
        return "\n\n".join(filter(None, [self._text(each, kind, depth) for each in parts]))

    def _text_of_alternatives(self, parts: list[EmailMessage], depth: int) -> str:
        """Return the plain text, the HTML that says much more, or both if they say different things."""
        plain, rich, failures = "", "", []
        for part in parts:
            try:
                text = self._text(part, "alternative", depth)
            except ExtractionFailed as failed:
                if failed.code not in NOT_OF_THE_WHOLE:
                    raise
                failures.append(failed)
                continue
            if _has_html(part):
                rich = rich or text
            else:
                plain = plain or text
        if failures:
            if not (plain or rich):
                raise failures[0]
            self.remarks.append(FORM_NOT_READ)
        text, remark = choose(plain, rich)
        self.remarks += filter(None, [remark])
        return text

    def _text_of_message(self, part: EmailMessage, depth: int) -> str:
        """Return a message within the message, under its subject; or note that it is not read."""
        self._messages += 1
        if self._messages > _MOST_MESSAGES:
            self.unread.append(_name(part))
            return ""
        unread = len(self.unread)
        try:
            with _of_the_library():
                message = _within(part)
                title, head, text = _title(message), _head(message), self._text(message, "", depth)
        except ExtractionFailed as failed:
            if failed.code not in NOT_OF_THE_WHOLE:
                raise
            self.unread[unread:] = [_name(part)]
            return ""
        return within_message(title, head, text)

    def _text_of_leaf(self, leaf: EmailMessage) -> str:
        is_html = leaf.get_content_subtype() == "html"
        text = self.decoded(leaf, is_html=is_html)
        if is_html:
            return markdown_of(text).strip()
        declared = {} if leaf["Content-Type"] is None else leaf["Content-Type"].params
        if declared.get("format", "").lower() == "flowed":
            text = _unwrapped(text, deletes_space=declared.get("delsp", "").lower() == "yes")
        return "\n".join(map(escaped, text.strip().splitlines()))

    def decoded(self, leaf: EmailMessage, *, is_html: bool) -> str:
        data = _bytes(leaf)
        return decode(data, "utf-8" if self._is_text_of_file(leaf) else _encoding(leaf, data, is_html))

    def _is_text_of_file(self, leaf: EmailMessage) -> bool:
        """True if the file is UTF-16, and so are the parts that are not encoded for transfer."""
        transferred = leaf["Content-Transfer-Encoding"]
        return self._is_wide and (transferred is None or transferred.cte in ("7bit", "8bit", "binary"))


def choose(plain: str, rich: str) -> tuple[str, str]:
    """Return the plain text of a message, its HTML, or both if they say different things, and a remark."""
    if not (plain and rich):
        return plain or rich, ""
    words, rich_words = _WORD.findall(plain.casefold()), _WORD.findall(rich.casefold())
    if len(rich_words) >= max(_TIMES * len(words), len(words) + _MORE):
        return rich, "Its HTML was read instead of its plain text, which has far fewer words."
    known = set(rich_words)
    if len(rich_words) > len(words) > 2 * sum(word in known for word in words):
        return f"{plain}\n\n{rich}", ""
    return plain, ""


def head_of(fields: Iterable[tuple[str, str]]) -> str:
    """Return header fields with a value, each on a line."""
    lines = ((name, one_line(value)) for name, value in fields)
    return "\n".join(escaped(f"{name}: {value[:_LONGEST_HEADER]}") for name, value in lines if value)


def _title(message: EmailMessage) -> str | None:
    return given_title(str(message["Subject"] or ""))


def _head(message: EmailMessage) -> str:
    return head_of((name, str(message[name] or "")) for name in _HEADERS)


def _fields(block: EmailMessage) -> str:
    """Return all header fields of a block of a report."""
    return head_of((name, str(value)) for name, value in block.items())


def _within(part: EmailMessage) -> EmailMessage:
    """Return the message in a part, which may be encoded for transfer."""
    (message,) = _parts(part)
    transferred = part["Content-Transfer-Encoding"]
    if transferred is not None and transferred.cte == "base64":
        return _parsed(b64decode("".join(str(message.get_payload()).split()), validate=True))
    return message


def _parts(part: EmailMessage) -> list[EmailMessage]:
    parts = part.get_payload()
    if not isinstance(parts, list):
        raise damaged(_FORMAT.label, "its parts are not where it says")
    return [each for each in parts if isinstance(each, EmailMessage)]


def _has_html(part: EmailMessage) -> bool:
    return any(each.get_content_type() == "text/html" for each in part.walk())


def _is_text(leaf: EmailMessage, within: str) -> bool:
    if leaf.get_content_type() not in _TEXTS or leaf.is_attachment():
        return False
    return within != "mixed" or not leaf.get_filename()


def _name(leaf: EmailMessage) -> str:
    return one_line(leaf.get_filename() or leaf.get_content_type())


def _unwrapped(text: str, *, deletes_space: bool) -> str:
    """Return text in format=flowed (RFC 3676) with a line for each paragraph; quotations keep their marks."""
    lines: list[list[str]] = []
    open_depth = -1  # of the quotation that the next line continues
    for line in text.splitlines():
        depth = len(line) - len(line.lstrip(">"))
        words = line[depth:].removeprefix(" ")
        if depth != open_depth or words == "-- ":
            lines.append([f"{'>' * depth} " if depth else ""])
        flows = words.endswith(" ") and words != "-- "
        lines[-1].append(words[:-1] if flows and deletes_space else words)
        open_depth = depth if flows else -1
    return "\n".join(map("".join, lines))


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
    if marked := encoding_by_mark(data):
        return marked
    if name in _OF_MAIL_ALONE:
        return name
    try:
        return encoding_named(declared, "message")
    except ExtractionFailed:
        if data.isascii() and _ESCAPE not in data:
            return "ascii"
        raise
