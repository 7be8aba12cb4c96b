"""JPG and PNG from bytes to pixels: what is too large is scaled down, or refused where that is too much."""

from __future__ import annotations

import io
import math
import struct
import zlib
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageFile, ImageOps

from kb_contracts.api.formats import Format
from kb_engine.extract.recognized import Pixels
from kb_readers.failures import damaged, unsafe

MOST_PIXELS = 50_000_000
"""Of a picture as it is read: an A4 page at 600 dots an inch has 35 million. A larger one is scaled down."""
MOST_DECODED_BYTES = 800_000_000
"""Of a picture while it is scaled down: 200 million pixels in colour, 800 million in grey."""

_DECODERS = {"jpg": "JPEG", "png": "PNG"}
# What the decoders let through on a file that is not sound.
_BROKEN = (OSError, SyntaxError, ValueError, EOFError, IndexError, KeyError, struct.error, zlib.error)
_SCALABLE = {"1": "L", "P": "RGBA"}  # modes in which Pillow takes one pixel of many
# By mode, with what it is scaled in; a transparent picture is multiplied by its cover before that.
_PIXEL_BYTES = {"L": 1, "1": 2, "I;16": 2, "RGBA": 8, "LA": 8, "P": 9}
_COLOUR_BYTES = 4
_PROGRESSIVE_BYTES = 6  # a pixel: the decoder holds the coefficients of all until the last has come


class Decoded(NamedTuple):
    """A picture as it is to be seen, and what a person should know of it."""

    pixels: Pixels
    remarks: list[str]


def decode_picture(data: bytes, fmt: Format) -> Decoded:
    """The first picture in the file: turned as the camera says, on white. Raises ExtractionFailed."""
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
    return Decoded(np.ascontiguousarray(np.asarray(white)[:, :, 2::-1]), remarks)


def _scaled(picture: ImageFile.ImageFile, fmt: Format) -> Image.Image:
    """The picture with no more than `MOST_PIXELS`, where decoding it whole takes no more than it may."""
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
