"""Reads JPG and PNG by optical character recognition (OCR), from top to bottom.

    decode (scale down if too large) ─▶ trim ─▶ cut into pieces ─▶ recognize (turn if needed) ─▶
    reading order (`layout`)

The recognizer comes with the extra `ocr`, including its models (PP-OCRv6, Apache-2.0): nothing is downloaded.
It knows Chinese, Japanese and scripts of Latin letters. A page of 90 full lines takes 25 seconds and 0.9 GB
on one core.
"""

from __future__ import annotations

import io
import math
import os
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kb_contracts.api.formats import FORMATS, Format
from kb_engine.extract import no_ocr
from kb_engine.extract.layout import Line, as_markdown
from kb_readers.failures import ExtractionFailed, damaged, unsafe
from kb_readers.markdown import one_line
from kb_readers.model import Context, Extraction, Page, Picture

if TYPE_CHECKING:
    from PIL import Image, ImageFile

Pixels: TypeAlias = NDArray[np.uint8]  # shape (height, width, 3); blue, green, red
MOST_PIXELS = 50_000_000
"""Maximum size of a decoded picture: an A4 page at 600 dpi has 35 million. A larger one is scaled down."""
MOST_DECODED_BYTES = 800_000_000
"""Maximum memory for scaling down: 200 million pixels in colour, 800 million in grey."""
LONGEST_SIDE = 2000
"""Maximum side of a recognized piece, in pixels; larger pieces are shrunk. Tall pictures are cut first."""
TALLEST = 1.5  # maximum height of a piece longer than `LONGEST_SIDE`, in widths
_PICTURE_SIDE = 1_400  # maximum side of a picture that is shown, in pixels

_MARKS = {"jpg": b"\xff\xd8\xff", "png": b"\x89PNG\r\n\x1a\n"}

_DECODERS = {"jpg": "JPEG", "png": "PNG"}
# Exceptions that the decoders raise for malformed files.
_BROKEN = (OSError, SyntaxError, ValueError, EOFError, IndexError, KeyError, struct.error, zlib.error)
_SCALABLE = {"1": "L", "P": "RGBA"}  # modes that Pillow can only subsample, and the mode to convert to
# Bytes per pixel by mode while scaling; a transparent picture is multiplied by its alpha before.
_PIXEL_BYTES = {"L": 1, "1": 2, "I;16": 2, "RGBA": 8, "LA": 8, "P": 9}
_COLOUR_BYTES = 4
_PROGRESSIVE_BYTES = 6  # per pixel: the decoder holds all coefficients until the last scan

_GROUND_NOISE = 10  # maximum difference of a background colour from the first pixel, of 255
_MARGIN = 40  # background that is kept around the content, in pixels
_LEAST_SIDE = 16  # minimum side after shrinking, in pixels: no line of text is lower
_WIDEST = 3.0  # maximum width of a piece longer than `LONGEST_SIDE`, in heights
_NARROWEST = 8  # maximum height of a piece, in widths
_CUT_FROM = 0.8  # part of a piece after which a place for the cut is searched
_MEMORY_SIGNS = ("alloc", "insufficient memory")

_HALF = 0.5  # part of the area of all lines: if this much is well read, the picture is not turned
_SAMPLE = 8  # lines that are read in another direction before the whole picture is turned
_LEGIBLE = 1 / 3  # part of the area of all lines: below this, even the certain lines are chance


def read_picture(data: bytes, context: Context) -> Extraction:
    """Return the words in a picture as one page without a number. Raises ExtractionFailed."""
    fmt = FORMATS[context.format]
    if not data.startswith(_MARKS[fmt.name]):
        raise ExtractionFailed("file_corrupt", f"The file is no {fmt.label}, although its name says so.")
    pixels, remarks = decode_picture(data, fmt)
    seen = load_recognizer()(pixels)
    if not seen.is_legible:
        remarks.append(illegible("In the picture"))
    elif remarks and not seen.text:
        remarks.append("No words were recognized in it.")
    page = Page(None, seen.text)
    return Extraction(
        [page],
        None,
        "image_analysis",
        fmt.mime_type,
        " ".join(remarks) or None,
        ocr_confidences={} if seen.confidence is None else {1: seen.confidence},
    )


def draw_picture(data: bytes, context: Context) -> Picture:
    """Return the first picture in the file, scaled down and encoded anew. Raises ExtractionFailed."""
    from PIL import Image  # part of the extra

    fmt = FORMATS[context.format]
    pixels, _ = decode_picture(data, fmt)
    picture, written = Image.fromarray(pixels[:, :, ::-1]), io.BytesIO()
    picture.thumbnail((_PICTURE_SIDE, _PICTURE_SIDE))
    picture.save(written, _DECODERS[fmt.name])
    return Picture(written.getvalue(), "image/jpeg" if fmt.name == "jpg" else "image/png")


def illegible(where: str) -> str:
    """Return the remark for lines that could not be read."""
    return (
        f"{where} there are lines that could not be read with certainty, and nothing was taken of them: "
        "they may be blurred, too small, or in a script that is not known."
    )


def decode_picture(data: bytes, fmt: Format) -> tuple[Pixels, list[str]]:
    """Return the first picture of the file, upright and on white; and remarks. Raises ExtractionFailed."""
    from PIL import Image, ImageOps  # part of the extra

    Image.MAX_IMAGE_PIXELS = None  # `MOST_PIXELS` bounds it instead
    remarks: list[str] = []
    try:
        with Image.open(io.BytesIO(data), formats=[_DECODERS[fmt.name]]) as picture:
            if fmt.name == "png" and getattr(picture, "is_animated", False):
                remarks.append("It is animated: its first picture was read.")
            if picture.width * picture.height > MOST_PIXELS:
                remarks.append(f"It has {_size(picture)}, so it was scaled down.")
            upright = ImageOps.exif_transpose(_scaled(picture, fmt))
            if upright.mode.startswith("I"):  # 16-bit grey, of which a conversion would keep the low bits
                upright = Image.fromarray((np.asarray(upright) >> 8).astype(np.uint8))
            upright = upright.convert("RGBA")
    except _BROKEN as error:
        raise damaged(fmt.label, str(error)) from None
    white = Image.new("RGBA", upright.size, "white")
    white.alpha_composite(upright)
    return np.ascontiguousarray(np.asarray(white)[:, :, 2::-1]), remarks


def _scaled(picture: ImageFile.ImageFile, fmt: Format) -> Image.Image:
    """Return the picture with at most `MOST_PIXELS`. Raises ExtractionFailed if that needs much memory."""
    from PIL import Image

    pixels, size = picture.width * picture.height, _size(picture)
    if pixels <= MOST_PIXELS:
        return picture
    share = math.sqrt(MOST_PIXELS / pixels)
    smaller = (max(1, int(picture.width * share)), max(1, int(picture.height * share)))
    picture.draft(None, smaller)  # a JPG can be decoded at a half, a quarter or an eighth of its size
    needed = picture.width * picture.height * _PIXEL_BYTES.get(picture.mode, _COLOUR_BYTES)
    if "progressive" in picture.info:
        needed += pixels * _PROGRESSIVE_BYTES
    if needed > MOST_DECODED_BYTES:
        raise unsafe(fmt.label, f"{size}, and it is too large to be scaled down")
    mode = _SCALABLE.get(picture.mode, picture.mode)
    scalable = picture if mode == picture.mode else picture.convert(mode)
    return scalable.resize(smaller, Image.Resampling.BOX)


def _size(picture: Image.Image) -> str:
    return f"{picture.width:,} x {picture.height:,} pixels, and {MOST_PIXELS:,} are the most that are read"


class Seen(NamedTuple):
    """The words of a picture as Markdown; empty unless `is_legible`."""

    text: str
    is_legible: bool
    confidence: float | None = None  # mean certainty of the lines of the text, weighted by their areas


def load_recognizer() -> Callable[[Pixels], Seen]:
    """Load the models, in about a second; return a function that reads the words of a picture.

    A picture that lies on its side or upside down is turned. Raises ExtractionFailed "ocr_failed" without
    the extra `ocr`; so does the function when the recognizer fails.
    """
    recognize = _load_models()

    def widened(piece: Pixels) -> list[Line]:
        height, width, _ = piece.shape
        is_small = min(height, width) * min(1.0, LONGEST_SIDE / max(height, width)) < _LEAST_SIDE
        if is_small or (piece == piece[0, 0]).all():
            return []
        # Widen a narrow piece: the recognizer enlarges a picture until its shorter side has 700 pixels.
        more = height // _NARROWEST - width
        return recognize(piece if more <= 0 else np.pad(piece, ((0, 0), (0, more), (0, 0)), mode="edge"))

    def read(pixels: Pixels) -> Seen:
        pieces = upright_lines(_trimmed(pixels), _pieces, widened)
        lines = [line for lines in pieces for line in lines]
        if not is_legible(lines):
            return Seen("", is_legible=False)
        text = "\n\n".join(filter(None, map(as_markdown, pieces)))
        return Seen(text, is_legible=True, confidence=_confidence(lines))

    return read


def _load_models() -> Recognize:
    # From 1.29 on the runtime's Linux builds send telemetry unless this is set before the import.
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
            "Global.text_score": 0.0,  # keep uncertain lines: they show which way up the picture is
            # Its detection of upside-down lines is often wrong.
            "Global.use_cls": False,
            # One line at a time: batches are no faster on one core, and need more memory.
            "Rec.rec_batch_num": 1,
            # With a path the package downloads no model.
            "Det.model_path": str(models / "PP-OCRv6_det_small.onnx"),
            "Rec.model_path": str(models / "PP-OCRv6_rec_small.onnx"),
            "EngineConfig.onnxruntime.intra_op_num_threads": 1,
            "EngineConfig.onnxruntime.inter_op_num_threads": 1,
        }
    )

    def recognize(pixels: Pixels) -> list[Line]:
        try:
            result = engine(pixels)
        except Exception as error:  # noqa: BLE001 - three libraries without a common exception
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

    return recognize


def _trimmed(pixels: Pixels) -> Pixels:
    """Trim the background, whose colour is the first pixel's: a lone line on a large one is overlooked."""
    visible = np.zeros(pixels.shape[:2], dtype=np.bool_)
    for colour in range(3):
        plane, ground = pixels[:, :, colour], pixels[0, 0, colour]
        visible |= np.maximum(plane, ground) - np.minimum(plane, ground) > _GROUND_NOISE
    rows, columns = np.flatnonzero(visible.any(axis=1)), np.flatnonzero(visible.any(axis=0))
    if not rows.size:
        return pixels[:0]
    top, left = max(0, rows[0] - _MARGIN), max(0, columns[0] - _MARGIN)
    return pixels[top : rows[-1] + _MARGIN, left : columns[-1] + _MARGIN]


def _pieces(pixels: Pixels) -> Iterator[Pixels]:
    """Cut a tall picture from top to bottom, a wide one from left to right; any other stays whole."""
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
    """Yield pieces of at most `most` rows, cut where the rows have the least contrast."""
    top = 0
    while pixels.shape[0] - top > most:
        begin = top + int(most * _CUT_FROM)
        # Green, at each fourth column: enough to tell a line of text from a gap.
        cut = begin + int(pixels[begin : top + most, ::4, 1].std(axis=1).argmin())
        yield pixels[top:cut]
        top = cut
    yield pixels[top:]


Recognize: TypeAlias = Callable[[Pixels], list[Line]]  # finds the lines of a picture, certain or not


def upright_lines(
    pixels: Pixels, pieces: Callable[[Pixels], Iterable[Pixels]], recognize: Recognize
) -> list[list[Line]]:
    """Return the lines of each piece of a picture, after turning it as the first piece with lines suggests.

    The recognizer also finds the lines of a picture that lies on its side or upside down. It reads vertical
    lines as if they had been turned to the left, so their characters come out in the wrong order, or not at
    all. The certainty and the shape of the lines show which way up the picture is.
    """
    found: list[list[Line]] = []
    for piece in pieces(pixels):
        lines = recognize(piece)
        if lines and not any(found) and (turns := _quarter_turns(piece, lines, recognize)):
            return [recognize(turned) for turned in pieces(np.rot90(pixels, turns))]
        found.append(lines)
    return found


def _quarter_turns(pixels: Pixels, lines: Sequence[Line], recognize: Recognize) -> int:
    """Return the number of quarter turns to the left that makes the lines run from left to right."""
    if _well_read(lines) >= _HALF:
        return 0
    if _share(lines, lambda line: line.stands) <= _HALF:
        turns = 2
    else:
        # Vertical lines were read as if turned to the left once.
        turns = 1 if _share(lines, lambda line: line.is_certain) >= _HALF else 3
    sample = sorted(lines, key=lambda line: line.area, reverse=True)[:_SAMPLE]
    parts = []
    for line in sample:  # cut out, with some background around
        margin = min(line.height, line.right - line.left) / 2
        top, left = max(0, int(line.top - margin)), max(0, int(line.left - margin))
        part = pixels[top : int(line.bottom + margin) + 1, left : int(line.right + margin) + 1]
        parts.append(np.rot90(part, turns))
    # Stacked into one picture: the recognizer is slower for flat pictures than for a page.
    width = max(part.shape[1] for part in parts)
    height = max(sum(part.shape[0] for part in parts), width // 2)
    stack: Pixels = np.empty((height, width, 3), dtype=np.uint8)
    stack[:] = parts[0][0, 0]
    top = 0
    for part in parts:
        stack[top : top + part.shape[0], : part.shape[1]] = part
        top += part.shape[0]
    tried = recognize(stack)
    return turns if _well_read(tried) >= max(_HALF, _well_read(sample)) else 0


def is_legible(lines: Sequence[Line]) -> bool:
    """True unless so little is certain that the certain lines are chance too."""
    return not lines or _share(lines, lambda line: line.is_certain) >= _LEGIBLE


def _confidence(lines: Sequence[Line]) -> float | None:
    certain = [line for line in lines if line.is_certain]
    area = sum(line.area for line in certain)
    return float(sum(line.certainty * line.area for line in certain) / area) if area else None


def _well_read(lines: Sequence[Line]) -> float:
    return _share(lines, lambda line: line.is_certain and not line.stands)


def _share(lines: Sequence[Line], counts: Callable[[Line], bool]) -> float:
    """Return the part of the area of all lines that counts; by area, so that headlines weigh more."""
    area = sum(line.area for line in lines)
    return sum(line.area for line in lines if counts(line)) / area if area else 0.0
