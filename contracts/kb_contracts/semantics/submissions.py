"""What is refused before anything is queued or changed, and what two equal submissions have in common."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from kb_contracts.api.errors import EngineError
from kb_contracts.api.formats import FORMATS, Format
from kb_contracts.api.models import MAX_INTEGER, Document, FileFields, NotePatch
from kb_contracts.api.ragler import PREFIX
from kb_contracts.semantics.refusals import document_not_found

_OCR_FORMATS = [form.label for form in FORMATS.values() if form.takes_ocr]


def check_note_text(text: str) -> None:
    """Raises EngineError: `invalid_parameter`, where a note holds nothing to find."""
    if not text.strip():
        raise EngineError(
            "invalid_parameter", "text is only white space; send the words to keep.", parameter="text"
        )


def check_patch(patch: NotePatch) -> None:
    """Raises EngineError: `missing_parameter` for a patch of nothing, else as `check_note_text`."""
    if patch.text is None and patch.title is None:
        raise EngineError("missing_parameter", "Send text, title or both.", parameter="text")
    if patch.text is not None:
        check_note_text(patch.text)


def check_ocr(fields: FileFields, form: Format) -> None:
    """Raises EngineError: `invalid_parameter`, where OCR is forced on what has no pages to look at."""
    if fields.force_ocr and not form.takes_ocr:
        raise EngineError(
            "invalid_parameter",
            f"force_ocr is for {', '.join(_OCR_FORMATS)}; of {form.label} the text itself is taken. "
            "Send the file without it.",
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


def check_version(document: Document, expected: int | None) -> None:
    """Raises EngineError: `version_conflict`, where the document no longer has the `expected` version."""
    if expected is not None and expected != document.version:
        raise EngineError(
            "version_conflict",
            f"The document has version {document.version}, not {expected}. Read it again and decide anew.",
            current_version=document.version,
        )


def document_key(text: str) -> int | str:
    """The number or the uid that a path names a document by.

    Raises:
        EngineError: `document_not_found` for a number beyond any document's.
    """
    if not text.isdecimal():
        return text
    if (number := int(text)) > MAX_INTEGER:
        raise document_not_found(text)
    return number


def text_digest(text: str) -> tuple[str, int]:
    """SHA-256 and size in bytes of a note's text in UTF-8."""
    data = text.encode("utf-8", "surrogatepass")
    return hashlib.sha256(data).hexdigest(), len(data)


def tags_to_unite(present: Sequence[str], further: Sequence[str]) -> list[str]:
    """Which tags a duplicate adds to the document that is there: no second collection, no tag twice."""
    in_collection = any(tag.startswith(PREFIX) for tag in present)
    collections = [] if in_collection else [tag for tag in further if tag.startswith(PREFIX)][:1]
    others = [tag for tag in further if not tag.startswith(PREFIX)]
    return [tag for tag in dict.fromkeys((*collections, *others)) if tag not in present]
