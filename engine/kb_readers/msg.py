"""Messages saved by Outlook, in the form of an e-mail: sender, recipients, date and body.

Messages within the message are read; other attachments are listed by name. The body is the plain text, unless
it is a stub beside the HTML, which may be wrapped in compressed RTF.

Numbers of properties are those of [MS-OXPROPS], the compression is [MS-OXRTFCP].
"""

from __future__ import annotations

import struct
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

from kb_contracts.api.formats import FORMATS
from kb_readers.failures import ExtractionFailed, damaged, too_much_text, unsafe
from kb_readers.html import find_encoding, markdown_of
from kb_readers.mail import FORM_NOT_READ, NOT_OF_THE_WHOLE, choose, extraction_of, head_of, within_message
from kb_readers.markdown import escaped, given_title, one_line
from kb_readers.model import DEFAULT_LIMITS, Extraction, TextBudget
from kb_readers.ole import Compound, code_page, reading
from kb_readers.rtf import read_rtf

_FORMAT = FORMATS["msg"]
_DEEPEST, _MOST_MESSAGES = 20, 1_000
_PROPERTIES = "__properties_version1.0"
_ATTACHMENT, _EMBEDDED = "__attach_version1.0_#", "__substg1.0_3701000D"
_WIDE, _NARROW, _BINARY = "001F", "001E", "0102"

_SUBJECT, _SENDER, _SENDER_SMTP, _SENDER_ADDRESS = "0037", "0C1A", "5D01", "0C1F"
_TO, _CC, _BODY, _HTML, _RTF = "0E04", "0E03", "1000", "1013", "1009"
_NAMES = ("3707", "3704", "3001")  # of an attachment: long, short, displayed
_SENT, _DELIVERED, _CODE_PAGE, _HTML_PAGE = 0x00390040, 0x0E060040, 0x3FFD0003, 0x3FDE0003
_HEAD_BYTES = (32, 24, 8)
"""Bytes before the properties of a message, of a message within one, and of an attachment."""
_EPOCH = datetime(1601, 1, 1, tzinfo=UTC)

_COMPRESSED, _UNCOMPRESSED = 0x75465A4C, 0x414C454D
_DICTIONARY = (
    rb"{\rtf1\ansi\mac\deff0\deftab720{\fonttbl;}{\f0\fnil \froman \fswiss \fmodern \fscript \fdecor "
    rb"MS Sans SerifSymbolArialTimes New RomanCourier{\colortbl\red0\green0\blue0"
    b"\r\n"
    rb"\par \pard\plain\f0\fs20\b\i\u\tab\tx"
)


def read_msg(data: bytes) -> Extraction:
    """Return the message as one page without a number; its subject is the title. Raises ExtractionFailed."""
    with reading(_FORMAT):
        outlook = _Outlook(Compound(data, _FORMAT))
        title, head, text = outlook.message()
    if not (title or head or text):
        raise damaged(_FORMAT.label, "it has neither a subject nor a text")
    return extraction_of(_FORMAT, title, head, text, outlook.unread, outlook.remarks)


class _Outlook:
    """The text of one file, with the names of the attachments that are not read."""

    def __init__(self, file: Compound) -> None:
        self.unread: list[str] = []
        self.remarks: list[str] = []
        self._file = file
        self._budget = TextBudget()
        self._messages = 0

    def message(self, *within: str) -> tuple[str | None, str, str]:
        """Return subject, header and text of the message in a storage, with the messages in it."""
        fixed = self._fixed(_HEAD_BYTES[1 if within else 0], *within)
        page = code_page(fixed.get(_CODE_PAGE)) or code_page(fixed.get(_HTML_PAGE)) or "cp1252"
        title = given_title(self._string(_SUBJECT, page, *within))
        name = self._string(_SENDER, page, *within)
        address = self._string(_SENDER_SMTP, page, *within) or self._string(_SENDER_ADDRESS, page, *within)
        is_address = "@" in address and address != name
        head = head_of(
            [
                ("From", f"{name} <{address}>" if is_address else name or address),
                ("To", self._string(_TO, page, *within)),
                ("Cc", self._string(_CC, page, *within)),
                ("Date", _date(fixed.get(_SENT) or fixed.get(_DELIVERED) or 0)),
            ]
        )
        parts = [self._body(page, code_page(fixed.get(_HTML_PAGE)), *within)]
        for each in self._file.storages(*within):
            if each.startswith(_ATTACHMENT):
                parts.append(self._attachment(page, *within, each))
        return title, head, "\n\n".join(filter(None, parts))

    def _attachment(self, page: str, *name: str) -> str:
        """Return a message within the message, under its subject; or note that the attachment is not read."""
        self._messages += 1
        if self._messages <= _MOST_MESSAGES and self._file.holds(*name, _EMBEDDED, _PROPERTIES):
            if len(name) > _DEEPEST:
                raise unsafe(_FORMAT.label, f"messages more than {_DEEPEST // 2:,} deep")
            unread = len(self.unread)
            try:
                title, head, text = self.message(*name, _EMBEDDED)
            except ExtractionFailed as failed:
                if failed.code not in NOT_OF_THE_WHOLE:
                    raise
                self.unread[unread:] = [self._attachment_name(page, *name)]
                return ""
            return within_message(title, head, text)
        self.unread.append(self._attachment_name(page, *name))
        return ""

    def _attachment_name(self, page: str, *name: str) -> str:
        names = (one_line(self._string(each, page, *name)) for each in _NAMES)
        return next(filter(None, names), "an attachment without a name")

    def _body(self, page: str, html_page: str | None, *within: str) -> str:
        lines = self._string(_BODY, page, *within).strip().splitlines()
        plain = "\n".join(map(escaped, lines))
        try:
            rich = self._rich_body(page, html_page, *within)
        except (ExtractionFailed, struct.error) as failed:
            if isinstance(failed, ExtractionFailed) and failed.code not in NOT_OF_THE_WHOLE:
                raise
            if not plain:
                raise
            rich = ""
            self.remarks.append(FORM_NOT_READ)
        text, remark = choose(plain, rich)
        self.remarks += filter(None, [remark])
        self._budget.spend(text)
        return text

    def _rich_body(self, page: str, html_page: str | None, *within: str) -> str:
        html = self._string(_HTML, page, *within)
        if data := self._stream(_HTML, _BINARY, *within):
            html = data.decode(html_page or find_encoding(data), "replace")
        if rich := markdown_of(html.replace("\0", "")).strip():
            return rich
        data = self._stream(_RTF, _BINARY, *within)
        return read_rtf(_decompressed(data)).pages[0].text.strip() if data else ""

    def _string(self, number: str, page: str, *within: str) -> str:
        if data := self._stream(number, _WIDE, *within):
            return data.decode("utf-16-le", "replace").rstrip("\0")
        data = self._stream(number, _NARROW, *within)
        try:
            return data.decode(page).rstrip("\0")
        except UnicodeDecodeError:  # of properties beside a body in UTF-8
            return data.decode("cp1252", "replace").rstrip("\0")

    def _stream(self, number: str, kind: str, *within: str) -> bytes:
        return self._file.read(*within, f"__substg1.0_{number}{kind}")

    def _fixed(self, head_bytes: int, *within: str) -> dict[int, int]:
        """Return the properties of fixed length by number and type."""
        data = self._file.read(*within, _PROPERTIES)[head_bytes:]
        entries = struct.iter_unpack("<IIQ", data[: len(data) // 16 * 16])
        return {tag: value for tag, _, value in entries}


def _date(ticks: int) -> str:
    """Return a time that is given in units of 100 ns from 1601 as mail writes it; "" if it is none."""
    try:
        return format_datetime(_EPOCH + timedelta(microseconds=ticks // 10)) if ticks else ""
    except OverflowError:
        return ""


def _decompressed(data: bytes) -> bytes:
    """Return compressed RTF. Raises ExtractionFailed, or struct.error for data that is cut off."""
    size, raw_size, kind, _ = struct.unpack_from("<4I", data)
    if raw_size > DEFAULT_LIMITS.text_bytes:
        raise too_much_text(DEFAULT_LIMITS.text_bytes)
    data = data[16 : 4 + size]
    if kind == _UNCOMPRESSED:
        return data
    if kind != _COMPRESSED:
        raise damaged(_FORMAT.label, "its RTF is in an unknown compression")
    out = bytearray(_DICTIONARY)
    at = 0
    while at < len(data) and len(out) < raw_size + len(_DICTIONARY):
        flags = data[at]
        at += 1
        for bit in range(8):
            if not flags >> bit & 1:
                out += data[at : at + 1]
                at += 1
                continue
            if at + 2 > len(data):
                return bytes(out[len(_DICTIONARY) :])
            reference = data[at] << 8 | data[at + 1]
            at += 2
            # The dictionary is a ring of 4,096 bytes, and `out` begins with its first content.
            distance = (len(out) - (reference >> 4)) % 4096
            if not distance:
                return bytes(out[len(_DICTIONARY) :])
            for _ in range((reference & 0xF) + 2):
                out.append(out[-distance] if distance <= len(out) else 0x20)
    return bytes(out[len(_DICTIONARY) :])
