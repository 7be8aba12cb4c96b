"""JPG and PNG by optical character recognition: the lines that a picture shows, from top to bottom.

The recognizer comes with the extra `ocr`, its models (PP-OCRv6, Apache-2.0) inside its package: nothing is
fetched. It knows Chinese, Japanese and what is written in Latin letters. A page of 90 full lines takes 25
seconds and 0.9 GB on one core.
"""

from __future__ import annotations

import io
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kb_engine.extract.failures import ExtractionFailed, damaged, no_ocr, unsafe
from kb_engine.extract.formats import Format
from kb_engine.extract.markdown import escaped, one_line
from kb_engine.extract.model import Extraction, Page

MOST_PIXELS = 50_000_000
"""Of a picture: an A4 page at 600 dots an inch has 35 million."""

Pixels = NDArray[np.uint8]
"""Of shape (height, width, 3); blue, green, red."""

_MARKS = {"jpg": b"\xff\xd8\xff", "png": b"\x89PNG\r\n\x1a\n"}
_DECODERS = {"jpg": "JPEG", "png": "PNG"}
# What the decoders let through on a file that is not sound.
_BROKEN = (OSError, SyntaxError, ValueError, EOFError, IndexError, KeyError, struct.error, zlib.error)
_MEMORY_SIGNS = ("alloc", "insufficient memory")

# What is recognized with less is as often wrong as right.
_LEAST_CERTAINTY = 0.8

# The recognizer shrinks a picture to a longest side of 2,000 pixels: of a tall one nothing would be legible.
LONGEST_SIDE = 2000
"""In pixels; what is larger is shrunk before it is read."""
TALLEST = 1.5
"""The height of a piece that is longer than that, in widths."""
_LEAST_SIDE = 16  # in pixels, once it is shrunk: no line of text is lower
_GROUND_NOISE = 10  # how far a colour of the ground may be from its first pixel's, of 255
_MARGIN = 40  # in pixels, that is left around what is not ground
_NARROWEST = 8  # the height of a piece, in widths
_CUT_FROM = 0.8  # the part of a piece after which a place for the cut is looked for
_SAME_ROW = 0.5  # how much of the lower of two lines must stand beside the other
_WIDEST_GAP = 2.0  # between pieces of one line, in heights
_PARAGRAPH_GAP = 1.0  # between lines, in heights


def read_picture(data: bytes, fmt: Format) -> Extraction:
    """The words in a picture as one page without a number. Raises ExtractionFailed."""
    if not data.startswith(_MARKS[fmt.name]):
        raise ExtractionFailed("file_corrupt", f"The file is no {fmt.label}, although its name says so.")
    text = recognizer()(_decoded(data, fmt))
    return Extraction([Page(None, text)], None, "image_analysis", fmt.mime_type)


def recognizer() -> Callable[[Pixels], str]:
    """What reads the words of a picture as Markdown, with its models loaded; that takes about a second.

    Raises ExtractionFailed "ocr_failed" without the extra `ocr`; calling it does where it breaks.
    """
    recognize = _recognizer()

    def read(pixels: Pixels) -> str:
        pieces = (_widened(piece) for piece in _pieces(_trimmed(pixels)) if _is_legible(piece))
        blocks = [_in_lines(recognize(piece)) for piece in pieces]
        return "\n\n".join(filter(None, blocks))

    return read


class _Found(NamedTuple):
    """One piece of text and the box around it, in pixels."""

    text: str
    left: float
    top: float
    right: float
    bottom: float


def _recognizer() -> Callable[[Pixels], list[_Found]]:
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
            "Global.text_score": _LEAST_CERTAINTY,
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


def _found(engine: Callable[[Pixels], Any], pixels: Pixels) -> list[_Found]:
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
        _Found(one_line(text), *box.min(axis=0), *box.max(axis=0))
        for text, box in zip(result.txts, result.boxes, strict=True)
    ]


def _decoded(data: bytes, fmt: Format) -> Pixels:
    """The first picture in the file as it is to be seen: turned as the camera says, on white."""
    from PIL import Image, ImageOps

    Image.MAX_IMAGE_PIXELS = None  # ours is asked instead
    try:
        with Image.open(io.BytesIO(data), formats=[_DECODERS[fmt.name]]) as picture:
            width, height = picture.size
            if width * height > MOST_PIXELS:
                raise unsafe(fmt.label, f"{width:,} x {height:,} pixels")
            upright = ImageOps.exif_transpose(picture)
            if upright.mode.startswith("I"):  # grey in 16 bits, of which a conversion would keep the lowest
                upright = Image.fromarray((np.asarray(upright) >> 8).astype(np.uint8))
            upright = upright.convert("RGBA")
    except _BROKEN as error:
        raise damaged(fmt.label, str(error)) from None
    white = Image.new("RGBA", upright.size, "white")
    white.alpha_composite(upright)
    return np.ascontiguousarray(np.asarray(white)[:, :, 2::-1])


def _pieces(pixels: Pixels) -> Iterator[Pixels]:
    """A tall picture in pieces from top to bottom, cut where there is least to be seen."""
    height, width, _ = pixels.shape
    most = max(LONGEST_SIDE, int(width * TALLEST))
    top = 0
    while height - top > most:
        begin = top + int(most * _CUT_FROM)
        # Green, at every fourth place: enough to tell a line of text from what is between two.
        cut = begin + int(pixels[begin : top + most, ::4, 1].std(axis=1).argmin())
        yield pixels[top:cut]
        top = cut
    yield pixels[top:]


def _trimmed(pixels: Pixels) -> Pixels:
    """Without the bare ground around, as the first pixel is: a lone line on much of it is overlooked."""
    shown = np.zeros(pixels.shape[:2], dtype=np.bool_)
    for colour in range(3):
        plane, ground = pixels[:, :, colour], pixels[0, 0, colour]
        shown |= np.maximum(plane, ground) - np.minimum(plane, ground) > _GROUND_NOISE
    rows, columns = np.flatnonzero(shown.any(axis=1)), np.flatnonzero(shown.any(axis=0))
    if not rows.size:
        return pixels[:0]
    top, left = max(0, rows[0] - _MARGIN), max(0, columns[0] - _MARGIN)
    return pixels[top : rows[-1] + _MARGIN, left : columns[-1] + _MARGIN]


def _is_legible(piece: Pixels) -> bool:
    shorter, longer = sorted(piece.shape[:2])
    return bool(shorter * min(1.0, LONGEST_SIDE / longer) >= _LEAST_SIDE)


def _widened(piece: Pixels) -> Pixels:
    """A narrow piece on more ground: the recognizer enlarges it until the shorter side has 700 pixels."""
    height, width, _ = piece.shape
    more = height // _NARROWEST - width
    return piece if more <= 0 else np.pad(piece, ((0, 0), (0, more), (0, 0)), mode="edge")


def _in_lines(found: list[_Found]) -> str:
    """Markdown: what stands close beside one another on a line, an empty line where there is a gap."""
    lines: list[str] = []
    before: _Found | None = None
    for piece in found:
        if before is not None and _continues(before, piece):
            lines[-1] += f" {piece.text}"
        else:
            if before is not None and piece.top - before.bottom > _PARAGRAPH_GAP * _height(piece):
                lines.append("")
            lines.append(piece.text)
        before = piece
    return "\n".join(map(escaped, lines))


def _continues(before: _Found, piece: _Found) -> bool:
    """Whether it goes on with the line; other columns are lines of their own."""
    beside = min(before.bottom, piece.bottom) - max(before.top, piece.top)
    lower = min(_height(before), _height(piece))
    return beside > _SAME_ROW * lower and abs(piece.left - before.right) < _WIDEST_GAP * lower


def _height(piece: _Found) -> float:
    return piece.bottom - piece.top
