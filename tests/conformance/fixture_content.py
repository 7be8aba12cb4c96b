"""What the fixture server serves: texts, a picture and a sound, as the conformance suite asks for them."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any

from mcp_types import AudioContent, EmbeddedResource, ImageContent, TextContent, TextResourceContents

SCHEMA_2020_12: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}
"""A schema with every keyword of JSON Schema 2020-12 that a server must pass on untouched."""


def text(words: str) -> TextContent:
    """A text."""
    return TextContent(type="text", text=words)


def image() -> ImageContent:
    """One red dot, a PNG."""
    return ImageContent(type="image", data=PNG, mime_type="image/png")


def audio() -> AudioContent:
    """A hundredth of a second of silence, a WAV."""
    return AudioContent(type="audio", data=WAV, mime_type="audio/wav")


def embedded(uri: str, mime_type: str, words: str) -> EmbeddedResource:
    """A text resource within a result."""
    contents = TextResourceContents(uri=uri, mime_type=mime_type, text=words)
    return EmbeddedResource(type="resource", resource=contents)


def _png() -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    pixel = zlib.compress(b"\x00\xff\x00\x00")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixel) + chunk(b"IEND", b"")


def _wav() -> bytes:
    rate, samples = 8000, bytes(80)
    form = struct.pack("<IHHIIHH", 16, 1, 1, rate, rate, 1, 8)
    body = b"WAVEfmt " + form + b"data" + struct.pack("<I", len(samples)) + samples
    return b"RIFF" + struct.pack("<I", len(body)) + body


PNG = base64.b64encode(_png()).decode()
WAV = base64.b64encode(_wav()).decode()
