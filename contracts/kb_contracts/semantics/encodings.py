"""Declared encodings of text: the labels of the WHATWG Encoding Standard, as browsers interpret them."""

from __future__ import annotations

import codecs

import webencodings

_WITHOUT_TEXT = frozenset(["replacement", "x-user-defined"])


def codec_of(label: str) -> str | None:
    """Return Python's name of the encoding with this label, or None if it is unknown or is not for text."""
    found = webencodings.lookup(label)
    if found is None or found.name in _WITHOUT_TEXT:
        return None
    # The standard decodes GBK as its superset.
    return "gb18030" if found.name == "gbk" else str(found.codec_info.name)


class ToUtf8:
    """Converts a text from a declared encoding to UTF-8 with a byte order mark, block by block.

    A mark of the text's own overrides the declared encoding. The mark of the result overrides declarations in
    the text.
    """

    def __init__(self, codec: str) -> None:
        self.codec = codec
        named = codecs.lookup(codec)
        self._decoder = webencodings.IncrementalDecoder(webencodings.Encoding(codec, named), "strict")
        self._mark = codecs.BOM_UTF8

    def convert(self, data: bytes, *, final: bool = False) -> bytes:
        """Return the next bytes in UTF-8. Raises UnicodeDecodeError."""
        mark, self._mark = self._mark, b""
        return mark + str(self._decoder.decode(data, final)).encode()
