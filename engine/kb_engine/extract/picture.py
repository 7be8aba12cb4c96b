"""JPG and PNG by optical character recognition: the lines that a picture shows, from top to bottom.

    decoded (scaled where it is too large) ─▶ trimmed ─▶ in pieces ─▶ recognized (turned where it lies)

The recognizer comes with the extra `ocr`, its models (PP-OCRv6, Apache-2.0) inside its package: nothing is
fetched. It knows Chinese, Japanese and what is written in Latin letters. A page of 90 full lines takes 25
seconds and 0.9 GB on one core.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kb_contracts.api.formats import FORMATS
from kb_engine.extract.failures import no_ocr
from kb_engine.extract.recognized import Line, Pixels, Recognize, as_markdown, is_legible, upright_lines
from kb_readers import Extraction, ExtractionFailed, Page
from kb_readers.markdown import one_line
from kb_readers.messages import Context

_MARKS = {"jpg": b"\xff\xd8\xff", "png": b"\x89PNG\r\n\x1a\n"}
_MEMORY_SIGNS = ("alloc", "insufficient memory")

# The recognizer shrinks a picture to a longest side of 2,000 pixels: of a tall one nothing would be legible.
LONGEST_SIDE = 2000
"""In pixels; what is larger is shrunk before it is read."""
TALLEST = 1.5
"""The height of a piece that is longer than that, in widths."""
_LEAST_SIDE = 16  # in pixels, once it is shrunk: no line of text is lower
_GROUND_NOISE = 10  # how far a colour of the ground may be from its first pixel's, of 255
_MARGIN = 40  # in pixels, that is left around what is not ground
_WIDEST = 3.0  # the width of a piece that is longer than `LONGEST_SIDE`, in heights
_NARROWEST = 8  # the height of a piece, in widths
_CUT_FROM = 0.8  # the part of a piece after which a place for the cut is looked for


def read_picture(data: bytes, context: Context) -> Extraction:
    """The words in a picture as one page without a number. Raises ExtractionFailed."""
    fmt = FORMATS[context.format]
    if not data.startswith(_MARKS[fmt.name]):
        raise ExtractionFailed("file_corrupt", f"The file is no {fmt.label}, although its name says so.")
    from kb_engine.extract.decoding import decode_picture  # Pillow comes with the extra

    pixels, remarks = decode_picture(data, fmt)
    seen = load_recognizer()(pixels)
    if not seen.is_legible:
        remarks.append(illegible("In the picture"))
    elif remarks and not seen.text:
        remarks.append("No words were recognized in it.")
    page = Page(None, seen.text)
    return Extraction([page], None, "image_analysis", fmt.mime_type, " ".join(remarks) or None)


class Seen(NamedTuple):
    """The words of a picture as Markdown; none where what looks like text is not `is_legible`."""

    text: str
    is_legible: bool


def illegible(where: str) -> str:
    """For people: that there are lines of which nothing was taken."""
    return (
        f"{where} there are lines that could not be read with certainty, and nothing was taken of them: "
        "they may be blurred, too small, or in a script that is not known."
    )


def load_recognizer() -> Callable[[Pixels], Seen]:
    """What reads the words of a picture, with its models loaded; that takes about a second.

    A picture that lies on its side or upside down is turned. Raises ExtractionFailed "ocr_failed" without the
    extra `ocr`; calling it does where it breaks.
    """
    recognize = _load_models()

    def widened(piece: Pixels) -> list[Line]:
        is_bare = not _is_large_enough(piece) or (piece == piece[0, 0]).all()
        return [] if is_bare else recognize(_widened(piece))

    def read(pixels: Pixels) -> Seen:
        pieces = upright_lines(_trimmed(pixels), _pieces, widened)
        if not is_legible([line for lines in pieces for line in lines]):
            return Seen("", is_legible=False)
        return Seen("\n\n".join(filter(None, map(as_markdown, pieces))), is_legible=True)

    return read


def _load_models() -> Recognize:
    # From 1.29 on the runtime's Linux builds report to their maker unless this stands before the import.
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    try:
        package = import_module("rapidocr")
    except ModuleNotFoundError as error:
        raise no_ocr(error.name or "rapidocr") from None
    models = Path(str(package.__file__)).parent / "models"
    engine = package.RapidOCR(
        params={
            "Global.log_level": "critical",
            "Global.max_side_len": LONGEST_SIDE,
            "Global.text_score": 0.0,  # also what it is not certain of tells which way up the picture is
            # Its guess which lines stand on their head is often wrong, and turns those that do not.
            "Global.use_cls": False,
            # Lines one by one: together they are no faster on one core, and take the memory of all.
            "Rec.rec_batch_num": 1,
            # Where a model has a path, none is fetched.
            "Det.model_path": str(models / "PP-OCRv6_det_small.onnx"),
            "Rec.model_path": str(models / "PP-OCRv6_rec_small.onnx"),
            "EngineConfig.onnxruntime.intra_op_num_threads": 1,
            "EngineConfig.onnxruntime.inter_op_num_threads": 1,
        }
    )
    return partial(_found, engine)


def _found(engine: Callable[[Pixels], Any], pixels: Pixels) -> list[Line]:
    try:
        result = engine(pixels)
    except Exception as error:  # noqa: BLE001 - three libraries, which share no kind of error
        if any(sign in str(error).lower() for sign in _MEMORY_SIGNS):
            raise MemoryError from None
        raise ExtractionFailed(
            "ocr_failed",
            f"The recognizer broke on this picture ({type(error).__name__}). "
            "Save it again, or a part of it, and try once more.",
        ) from None
    if result.txts is None:
        return []
    return [
        Line(one_line(text), certainty, *box.min(axis=0), *box.max(axis=0))
        for text, certainty, box in zip(result.txts, result.scores, result.boxes, strict=True)
    ]


def _pieces(pixels: Pixels) -> Iterator[Pixels]:
    """A tall picture in pieces from top to bottom, a wide one from left to right, any other whole."""
    height, width, _ = pixels.shape
    if not height:
        return
    if (longest := int(width * TALLEST)) < height:
        yield from _cut(pixels, max(LONGEST_SIDE, longest))
    else:
        on_its_side = pixels.swapaxes(0, 1)
        for piece in _cut(on_its_side, max(LONGEST_SIDE, int(height * _WIDEST))):
            yield piece.swapaxes(0, 1)


def _cut(pixels: Pixels, most: int) -> Iterator[Pixels]:
    """Pieces of at most that many rows, cut where there is least to be seen."""
    top = 0
    while pixels.shape[0] - top > most:
        begin = top + int(most * _CUT_FROM)
        # Green, at every fourth place: enough to tell a line of text from what is between two.
        cut = begin + int(pixels[begin : top + most, ::4, 1].std(axis=1).argmin())
        yield pixels[top:cut]
        top = cut
    yield pixels[top:]


def _trimmed(pixels: Pixels) -> Pixels:
    """Without the bare ground around, as the first pixel is: a lone line on much of it is overlooked."""
    visible = np.zeros(pixels.shape[:2], dtype=np.bool_)
    for colour in range(3):
        plane, ground = pixels[:, :, colour], pixels[0, 0, colour]
        visible |= np.maximum(plane, ground) - np.minimum(plane, ground) > _GROUND_NOISE
    rows, columns = np.flatnonzero(visible.any(axis=1)), np.flatnonzero(visible.any(axis=0))
    if not rows.size:
        return pixels[:0]
    top, left = max(0, rows[0] - _MARGIN), max(0, columns[0] - _MARGIN)
    return pixels[top : rows[-1] + _MARGIN, left : columns[-1] + _MARGIN]


def _is_large_enough(piece: Pixels) -> bool:
    shorter, longer = sorted(piece.shape[:2])
    return bool(shorter * min(1.0, LONGEST_SIDE / longer) >= _LEAST_SIDE)


def _widened(piece: Pixels) -> Pixels:
    """A narrow piece on more ground: the recognizer enlarges it until the shorter side has 700 pixels."""
    height, width, _ = piece.shape
    more = height // _NARROWEST - width
    return piece if more <= 0 else np.pad(piece, ((0, 0), (0, more), (0, 0)), mode="edge")
