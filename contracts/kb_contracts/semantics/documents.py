"""Documents: refusals before a request has an effect, and the rules for titles and tags."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from kb_contracts.api import models as m
from kb_contracts.api.errors import EngineError
from kb_contracts.api.formats import FORMATS, Format
from kb_contracts.api.ragler import PREFIX

MAX_METADATA_BYTES = 65_536
MAX_METADATA_DEPTH = 32
_TITLE_CHARS = 80
_HEADING = re.compile(r"^#{1,6} (?=.*[^# ])")
_OCR_FORMATS = [form.label for form in FORMATS.values() if form.takes_ocr]


def check_note_text(text: str) -> None:
    """Raises EngineError: `invalid_parameter`, if a note has no visible character."""
    if not m.VISIBLE.search(text):
        raise EngineError(
            "invalid_parameter", "text has no visible character; send a text with words.", parameter="text"
        )


def check_original_kept(document: m.Document) -> None:
    """Raises EngineError: `original_not_kept`, with the reason."""
    if document.original is True:
        return
    if document.doc_type == "note":
        why = "A note has no file. Its text is available as it was sent: getDocument with text=true."
    else:
        why = (
            "The engine kept no files when this one was sent, dropped it for newer ones, or it is larger "
            "than KB_ORIGINALS_BYTES. If the engine keeps files now (KB_KEEP_ORIGINALS), send it again."
        )
    raise EngineError("original_not_kept", why)


def picture_of(document: m.DocumentDetail, page: int | None) -> tuple[int, str]:
    """Return the number of the page to show, from 1, and the text to mark: that of the only chunk, if any.

    Raises EngineError: `original_not_kept`, or `invalid_parameter` for a page that does not exist.
    """
    check_original_kept(document)
    chunk = document.chunks[0] if document.chunks else None
    number = page or (chunk and chunk.page) or 1
    if number > (last := document.pages or 1):
        none = f"The document has no page {number:,}; its last is {last:,}."
        raise EngineError("invalid_parameter", none, parameter="page")
    return number, chunk.text if chunk else ""


def check_metadata(metadata: Mapping[str, Any]) -> None:
    """Refuse metadata that is too large or too deeply nested to be part of every result.
    Raises EngineError: `invalid_parameter`, over 64 KiB as JSON or over 32 levels deep.
    """
    size = len(msgspec.json.encode(metadata))
    problem = f"is {size} bytes as JSON; at most {MAX_METADATA_BYTES} are accepted"
    if size <= MAX_METADATA_BYTES:
        problem = f"is nested more than {MAX_METADATA_DEPTH} levels deep"
        level: list[Any] = [metadata]
        for _ in range(MAX_METADATA_DEPTH):
            members = [
                member for outer in level for member in (outer.values() if isinstance(outer, dict) else outer)
            ]
            level = [member for member in members if isinstance(member, dict | list)]
        if not level:
            return
    raise EngineError("invalid_parameter", f"metadata {problem}.", parameter="metadata")


def check_patch(patch: m.NotePatch) -> None:
    """Raises EngineError: `missing_parameter` for an empty patch, otherwise as `check_note_text`."""
    if patch.text is None and patch.title is None:
        raise EngineError("missing_parameter", "Send text, title or both.", parameter="text")
    if patch.text is not None:
        check_note_text(patch.text)


def check_ocr(fields: m.FileFields, form: Format) -> None:
    """Raises EngineError: `invalid_parameter`, if OCR is forced on a format without pages or pixels."""
    if fields.force_ocr and not form.takes_ocr:
        raise EngineError(
            "invalid_parameter",
            f"force_ocr is for {', '.join(_OCR_FORMATS)}; the text of {form.label} is read directly. "
            "Send the file without force_ocr.",
            parameter="force_ocr",
        )


def check_confirmed(confirm: bool) -> None:
    """Raises EngineError: `confirmation_required`."""
    if not confirm:
        raise EngineError(
            "confirmation_required",
            "This removes every document. Send confirm=true to do it.",
            parameter="confirm",
        )


def check_version(version: int, *expected: int | None) -> None:
    """Raises EngineError: `version_conflict`, if a document's `version` differs from one `expected`."""
    for each in expected:
        if each not in (None, version):
            raise EngineError(
                "version_conflict",
                f"The document has version {version}, not {each}. Read it again and repeat the change.",
                current_version=version,
            )


def document_key(text: str) -> int | str:
    """Return the number or the uid of the document in a path.
    Raises EngineError: `document_not_found` for a number beyond any document's.
    """
    if not text.isdecimal():
        return text
    if (number := int(text)) > m.MAX_INTEGER:
        raise document_not_found(text)
    return number


def text_digest(text: str) -> tuple[str, int]:
    """Return SHA-256 and size in bytes of a note's text in UTF-8."""
    data = text.encode("utf-8", "surrogatepass")
    return hashlib.sha256(data).hexdigest(), len(data)


WHITE_SPACE = (
    "\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007"
    "\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
)
"""Trailing characters that do not distinguish two notes."""


def note_hash(text: str) -> str:
    """Return the content hash of a note: the SHA-256 of its text without trailing white space."""
    return text_digest(text.rstrip(WHITE_SPACE))[0]


def tags_to_unite(present: Sequence[str], further: Sequence[str]) -> list[str]:
    """Return the tags that a further submission adds to the existing document, in their order.

    A document gets no second collection, no tag twice, and at most `MAX_TAGS` tags.
    """
    united = list(present)
    for tag in further:
        second = tag.startswith(PREFIX) and any(known.startswith(PREFIX) for known in united)
        if tag not in united and not second and len(united) < m.MAX_TAGS:
            united.append(tag)
    return united[len(present) :]


def check_tags_fit(present: Sequence[str], further: Sequence[str]) -> None:
    """Raises EngineError: `invalid_parameter`, if a document would have more than `MAX_TAGS` tags."""
    added = set(further).difference(present)
    if added and len(present) + len(added) > m.MAX_TAGS:
        raise EngineError(
            "invalid_parameter",
            f"The document has {len(present)} tags and would have {len(present) + len(added)}; the maximum "
            f"is {m.MAX_TAGS}. Remove some first.",
            parameter="tags",
        )


def note_title(text: str) -> str:
    """Return the first line that shows a character, without the mark of a heading, cut to 80 characters."""
    return _cut(_HEADING.sub("", _first_line(text)))


def _first_line(text: str) -> str:
    """Return the first line that shows a character, from that character on, white space collapsed."""
    first = m.VISIBLE.search(text)
    return "" if first is None else " ".join(text[first.start() :].splitlines()[0].split())


def _cut(title: str) -> str:
    return title if len(title) <= _TITLE_CHARS else title[: _TITLE_CHARS - 1].rstrip() + "…"


def similar_notes(found: Sequence[m.SearchResult], document_id: int, limit: int) -> list[m.SimilarNote]:
    """The first `limit` documents of `found`, passages of notes with the best first; not `document_id`."""
    notes: dict[int, m.SimilarNote] = {}
    for result in found:
        document = result.document
        if document.id != document_id and document.id not in notes:
            line = note_title(result.chunk.text)
            notes[document.id] = m.SimilarNote(document.id, document.uid, line, result.score)
    return list(notes.values())[:limit]


def title_after_update(title: str, old_text: str, text: str) -> str:
    """Return the title of a note after a change of its text: a derived title is derived anew, a given one
    stays. Earlier versions derived it with the mark of a heading.
    """
    derived = (note_title(old_text), _cut(_first_line(old_text)))
    return note_title(text) if title in derived else title


def document_not_found(key: int | str) -> EngineError:
    """`key` is the number or the uid that was sent."""
    return EngineError(
        "document_not_found", f"There is no document {key}. List the documents to see which exist."
    )


def not_a_note(document_id: int) -> EngineError:
    return EngineError(
        "not_a_note",
        f"Document {document_id} came from a file. Add the changed file with the same source path, or add it "
        "and delete this document.",
    )


def tag_not_found(tag: str) -> EngineError:
    return EngineError("tag_not_found", f"The document does not carry the tag {tag!r}.")


def fidelity_in_words(fidelity: m.Fidelity) -> list[str]:
    """Return the entries of a report that are not empty, each as `name: value`."""
    pages = {"by OCR": fidelity.ocr_pages, "without text": fidelity.pages_without_text}
    return [
        *([f"encoding detected: {fidelity.encoding}"] if fidelity.encoding else []),
        *([f"columns detected: {fidelity.columns}"] if fidelity.columns else []),
        *(f"pages {name}: {len(numbers):,}" for name, numbers in pages.items() if numbers),
        *([] if (share := fidelity.ocr_confidence) is None else [f"confidence of OCR: {share:.0%}"]),
        *([f"left out: {', '.join(fidelity.left_out)}"] if fidelity.left_out else []),
    ]
