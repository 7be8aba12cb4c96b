"""JPG and PNG by optical character recognition: the lines that a picture shows, from top to bottom.

    decoded (scaled where it is too large) ─▶ trimmed ─▶ in pieces ─▶ recognized (turned where it lies) ─▶
    in reading order (`layout`)

The recognizer comes with the extra `ocr`, its models (PP-OCRv6, Apache-2.0) inside its package: nothing is
fetched. It knows Chinese, Japanese and what is written in Latin letters. A page of 90 full lines takes 25
seconds and 0.9 GB on one core.
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
from kb_readers.model import Context, Extraction, Page

if TYPE_CHECKING:
    from PIL import Image, ImageFile

Pixels: TypeAlias = NDArray[np.uint8]
"""Of shape (height, width, 3); blue, green, red."""
MOST_PIXELS = 50_000_000
"""Of a picture as it is read: an A4 page at 600 dots an inch has 35 million. A larger one is scaled down."""
MOST_DECODED_BYTES = 800_000_000
"""Of a picture while it is scaled down: 200 million pixels in colour, 800 million in grey."""
LONGEST_SIDE = 2000
"""In pixels; what is larger is shrunk before it is read, and of a tall picture nothing would be legible."""
TALLEST = 1.5
"""The height of a piece that is longer than that, in widths."""

_MARKS = {"jpg": b"\xff\xd8\xff", "png": b"\x89PNG\r\n\x1a\n"}

_DECODERS = {"jpg": "JPEG", "png": "PNG"}
# What the decoders let through on a file that is not sound.
_BROKEN = (OSError, SyntaxError, ValueError, EOFError, IndexError, KeyError, struct.error, zlib.error)
_SCALABLE = {"1": "L", "P": "RGBA"}  # modes in which Pillow takes one pixel of many
# By mode, with what it is scaled in; a transparent picture is multiplied by its cover before that.
_PIXEL_BYTES = {"L": 1, "1": 2, "I;16": 2, "RGBA": 8, "LA": 8, "P": 9}
_COLOUR_BYTES = 4
_PROGRESSIVE_BYTES = 6  # a pixel: the decoder holds the coefficients of all until the last has come

_GROUND_NOISE = 10  # how far a colour of the ground may be from its first pixel's, of 255
_MARGIN = 40  # in pixels, that is left around what is not ground
_LEAST_SIDE = 16  # in pixels, once it is shrunk: no line of text is lower
_WIDEST = 3.0  # the width of a piece that is longer than `LONGEST_SIDE`, in heights
_NARROWEST = 8  # the height of a piece, in widths
_CUT_FROM = 0.8  # the part of a piece after which a place for the cut is looked for
_MEMORY_SIGNS = ("alloc", "insufficient memory")

_HALF = 0.5  # of the area of all lines: a picture of which so much is read well is not turned
_SAMPLE = 8  # lines that are read in another direction before the whole picture is turned
_LEGIBLE = 1 / 3  # of the area of all lines: where less is certain, that too is chance


def read_picture(data: bytes, context: Context) -> Extraction:
    """The words in a picture as one page without a number. Raises ExtractionFailed."""
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
    return Extraction([page], None, "image_analysis", fmt.mime_type, " ".join(remarks) or None)


def illegible(where: str) -> str:
    """For people: that there are lines of which nothing was taken."""
    return (
        f"{where} there are lines that could not be read with certainty, and nothing was taken of them: "
        "they may be blurred, too small, or in a script that is not known."
    )


def decode_picture(data: bytes, fmt: Format) -> tuple[Pixels, list[str]]:
    """The first picture in the file, turned as the camera says, on white; and remarks for people.

    Raises ExtractionFailed.
    """
    from PIL import Image, ImageOps  # they come with the extra

    Image.MAX_IMAGE_PIXELS = None  # `MOST_PIXELS` bounds it instead
    remarks: list[str] = []
    try:
        with Image.open(io.BytesIO(data), formats=[_DECODERS[fmt.name]]) as picture:
            if fmt.name == "png" and getattr(picture, "is_animated", False):
                remarks.append("It is animated: its first picture was read.")
            if picture.width * picture.height > MOST_PIXELS:
                remarks.append(f"It has {_size(picture)}, so it was scaled down.")
            upright = ImageOps.exif_transpose(_scaled(picture, fmt))
            if upright.mode.startswith("I"):  # grey in 16 bits, of which a conversion would keep the lowest
                upright = Image.fromarray((np.asarray(upright) >> 8).astype(np.uint8))
            upright = upright.convert("RGBA")
    except _BROKEN as error:
        raise damaged(fmt.label, str(error)) from None
    white = Image.new("RGBA", upright.size, "white")
    white.alpha_composite(upright)
    return np.ascontiguousarray(np.asarray(white)[:, :, 2::-1]), remarks


def _scaled(picture: ImageFile.ImageFile, fmt: Format) -> Image.Image:
    """The picture with no more than `MOST_PIXELS`, where decoding it whole takes no more than it may."""
    from PIL import Image

    pixels, size = picture.width * picture.height, _size(picture)
    if pixels <= MOST_PIXELS:
        return picture
    share = math.sqrt(MOST_PIXELS / pixels)
    smaller = (max(1, int(picture.width * share)), max(1, int(picture.height * share)))
    picture.draft(None, smaller)  # a JPG is decoded at once to a half, a quarter or an eighth
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
    """The words of a picture as Markdown; none where what looks like text is not `is_legible`."""

    text: str
    is_legible: bool


def load_recognizer() -> Callable[[Pixels], Seen]:
    """What reads the words of a picture, with its models loaded; that takes about a second.

    A picture that lies on its side or upside down is turned. Raises ExtractionFailed "ocr_failed" without the
    extra `ocr`; calling it does where it breaks.
    """
    recognize = _load_models()

    def widened(piece: Pixels) -> list[Line]:
        height, width, _ = piece.shape
        is_small = min(height, width) * min(1.0, LONGEST_SIDE / max(height, width)) < _LEAST_SIDE
        if is_small or (piece == piece[0, 0]).all():
            return []
        # A narrow piece on more ground: the recognizer enlarges it until the shorter side has 700 pixels.
        more = height // _NARROWEST - width
        return recognize(piece if more <= 0 else np.pad(piece, ((0, 0), (0, more), (0, 0)), mode="edge"))

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

    def recognize(pixels: Pixels) -> list[Line]:
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

    return recognize


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


Recognize: TypeAlias = Callable[[Pixels], list[Line]]
"""Finds the lines of a picture, certain or not."""


def upright_lines(
    pixels: Pixels, pieces: Callable[[Pixels], Iterable[Pixels]], recognize: Recognize
) -> list[list[Line]]:
    """The lines of each piece of a picture, which is turned as the first piece with lines tells.

    The recognizer finds the lines of a picture that lies on its side or upside down too. It reads those that
    stand as if they had been turned to the left, so that they come out right in the wrong order, or not at
    all. What it is certain of, and how its lines lie, tells which way up the picture is.
    """
    found: list[list[Line]] = []
    for piece in pieces(pixels):
        lines = recognize(piece)
        if lines and not any(found) and (turns := _quarter_turns(piece, lines, recognize)):
            return [recognize(turned) for turned in pieces(np.rot90(pixels, turns))]
        found.append(lines)
    return found


def _quarter_turns(pixels: Pixels, lines: Sequence[Line], recognize: Recognize) -> int:
    """How many quarters to the left the picture is to be turned, so that its lines run from left to right."""
    if _well_read(lines) >= _HALF:
        return 0
    if _share(lines, lambda line: line.stands) <= _HALF:
        turns = 2
    else:
        # What stands was read as if it were turned to the left once.
        turns = 1 if _share(lines, lambda line: line.is_certain) >= _HALF else 3
    sample = sorted(lines, key=lambda line: line.area, reverse=True)[:_SAMPLE]
    parts = []
    for line in sample:  # where it is, with some ground around
        margin = min(line.height, line.right - line.left) / 2
        top, left = max(0, int(line.top - margin)), max(0, int(line.left - margin))
        part = pixels[top : int(line.bottom + margin) + 1, left : int(line.right + margin) + 1]
        parts.append(np.rot90(part, turns))
    # One picture of all: a recognizer takes longer for a flat one than for a page.
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
    """Whether enough of what looks like text was read that the rest is not chance."""
    return not lines or _share(lines, lambda line: line.is_certain) >= _LEGIBLE


def _well_read(lines: Sequence[Line]) -> float:
    return _share(lines, lambda line: line.is_certain and not line.stands)


def _share(lines: Sequence[Line], counts: Callable[[Line], bool]) -> float:
    """Of the area of all lines, that of those which count; a headline says more than a footnote."""
    area = sum(line.area for line in lines)
    return sum(line.area for line in lines if counts(line)) / area if area else 0.0
