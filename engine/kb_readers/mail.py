"""An e-mail as it is read: who wrote to whom, when, and what; attachments by their names alone."""

from __future__ import annotations

from email import message_from_bytes, policy
from email.message import EmailMessage

from kb_contracts.api.formats import FORMATS
from kb_readers.failures import damaged
from kb_readers.html import markdown_of
from kb_readers.markdown import escaped, given_title, one_line
from kb_readers.model import Extraction, Page

_FORMAT = FORMATS["eml"]
_HEADERS = ("From", "To", "Cc", "Date")
_LONGEST_HEADER = 1_000
_MOST_NAMES = 50


def read_mail(data: bytes) -> Extraction:
    """The whole message as one page without a number; its subject is the title. Raises ExtractionFailed."""
    message = message_from_bytes(data, policy=policy.default)
    assert isinstance(message, EmailMessage), "what the policy makes"
    try:
        headers = [(name, one_line(str(message[name] or ""))) for name in _HEADERS]
        title = given_title(str(message["Subject"] or ""))
        text = _body(message)
        attached = message.iter_attachments()
        attachments = [one_line(each.get_filename() or each.get_content_type()) for each in attached]
    except (ValueError, LookupError, AttributeError, TypeError) as error:  # the library's, of odd headers
        raise damaged(_FORMAT.label, str(error)) from None
    if not any(value for _, value in headers):
        raise damaged(_FORMAT.label, "it says neither from whom nor to whom it is")
    head = "\n".join(escaped(f"{name}: {value[:_LONGEST_HEADER]}") for name, value in headers if value)
    names = ", ".join(attachments[:_MOST_NAMES])
    parts = [f"# {title}" if title else "", head, text, f"Attachments: {names}" if names else ""]
    page = "\n\n".join(filter(None, parts)).replace("\0", "")
    remark = f"Attachments are not read: {names}" if names else None
    return Extraction([Page(None, page)], title, "text_extraction", _FORMAT.mime_type, remark)


def _body(message: EmailMessage) -> str:
    part = message.get_body(("plain", "html"))
    if part is None:
        return ""
    content = str(part.get_content())
    if part.get_content_subtype() == "html":
        return markdown_of(content)
    return "\n".join(map(escaped, content.splitlines())).strip()
