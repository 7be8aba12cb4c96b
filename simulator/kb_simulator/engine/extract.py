"""Files into text, by the readers that the engine has too. OCR alone is missing: a fake loads no models."""

from __future__ import annotations

from tempfile import TemporaryFile

from kb_contracts.api.formats import Format
from kb_readers import Extraction, ExtractionFailed, read_file

_PICTURES = frozenset(["jpg", "png"])


async def extract(data: bytes, fmt: Format, *, force_ocr: bool = False) -> Extraction:
    """The text of a file.

    Raises:
        ExtractionFailed: as `kb_readers.read_file`; `ocr_failed` for every picture, and every PDF of which
        OCR is
            forced.
    """
    if force_ocr or fmt.name in _PICTURES:
        raise ExtractionFailed(
            "ocr_failed", "The simulator reads no pictures, nor does an engine without the extra `ocr`."
        )
    with TemporaryFile() as source:
        source.write(data)
        source.seek(0)
        return await read_file(source, fmt)
