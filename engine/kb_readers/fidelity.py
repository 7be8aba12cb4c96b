"""The report of the reading of a file, for its document."""

from __future__ import annotations

from statistics import fmean

from kb_contracts.api.models import Fidelity
from kb_readers.model import Extraction

_MOST_NAMES = 50


def fidelity_of(extraction: Extraction) -> Fidelity:
    """Return the report; at most fifty names of parts are listed."""
    confidences = extraction.ocr_confidences
    return Fidelity(
        encoding=extraction.encoding,
        columns=extraction.columns,
        ocr_pages=sorted(confidences),
        ocr_confidence=round(fmean(confidences.values()), 3) if confidences else None,
        pages_without_text=[
            page.number for page in extraction.pages if page.number is not None and not page.text.strip()
        ],
        left_out=extraction.left_out[:_MOST_NAMES],
    )
