"""Compound files (OLE), the container of Outlook messages and of Office files from before 2007.

The package olefile reads them. Nothing in them is run: macros are streams that no reader opens.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO

from olefile import OleFileIO

from kb_contracts.api.formats import Format
from kb_readers.failures import ExtractionFailed, damaged, locked, unsafe
from kb_readers.markdown import office_title

MAGIC = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_ENCRYPTED = "EncryptedPackage"
_SUMMARY = "\x05SummaryInformation"
_MOST_PROPERTIES = 1_000
_CODE_PAGE, _TITLE = 1, 2  # properties of the summary
_NARROW_STRING, _WIDE_STRING = 0x1E, 0x1F
_CODE_PAGES = {
    936: "gb18030", 1200: "utf-16-le", 10000: "mac-roman", 20127: "cp1252", 20866: "koi8-r", 21866: "koi8-u",
    28591: "cp1252", 50220: "iso2022_jp", 51932: "euc_jp", 51949: "euc_kr", 54936: "gb18030", 65001: "utf-8",
}  # fmt: skip


class Compound:
    """One compound file. Names of streams and storages are lists, from the root."""

    def __init__(self, data: bytes, fmt: Format) -> None:
        """Open the file. Raises ExtractionFailed."""
        self._fmt = fmt
        logging.getLogger("olefile").disabled = True  # reports defects that are no failures here
        with reading(fmt):
            if not data.startswith(MAGIC):
                raise damaged(fmt.label, "it is no compound file")
            self._file = OleFileIO(BytesIO(data))
            self._size = len(data)
            # The library follows chains of sectors, even loops, up to the size that a stream declares.
            if self._file.root.size > self._size:
                raise damaged(fmt.label, "its small streams are larger than the file")
            if self.holds(_ENCRYPTED):
                raise locked(fmt.label)

    def holds(self, *name: str) -> bool:
        return bool(self._file.exists(list(name)))

    def read(self, *name: str) -> bytes:
        """Return a stream; empty if there is none. Raises ExtractionFailed."""
        if not self.holds(*name):
            return b""
        with reading(self._fmt):
            if self._file.get_size(list(name)) > self._size:
                raise damaged(self._fmt.label, "a stream is larger than the file")
            found = self._file.openstream(list(name)).read()
            assert isinstance(found, bytes), "as olefile documents"
            return found

    def storages(self, *within: str) -> list[str]:
        """Return the names of the storages and streams that a storage holds, sorted."""
        depth = len(within)
        names = self._file.listdir(streams=True, storages=True)
        return sorted({each[depth] for each in names if each[:depth] == [*within] and len(each) > depth})

    @property
    def title(self) -> str | None:
        """The title in the file's properties, or None if it is missing, unreadable or a default."""
        try:
            return office_title(_title(self.read(_SUMMARY)))
        except (ExtractionFailed, struct.error):
            return None


def _title(summary: bytes) -> str | None:
    """Return the title in a set of properties [MS-OLEPS]; the library loops as often as a file says."""
    (start,) = struct.unpack_from("<I", summary, 44)
    _, count = struct.unpack_from("<2I", summary, start)
    offsets = {}
    for index in range(min(count, _MOST_PROPERTIES)):
        number, offset = struct.unpack_from("<2I", summary, start + 8 + 8 * index)
        offsets[number] = start + offset
    if _TITLE not in offsets:
        return None
    page = struct.unpack_from("<IH", summary, offsets[_CODE_PAGE])[1] if _CODE_PAGE in offsets else 0
    kind, size = struct.unpack_from("<2I", summary, offsets[_TITLE])
    data = summary[offsets[_TITLE] + 8 :]
    if kind == _WIDE_STRING:
        return data[: 2 * size].decode("utf-16-le", "replace")
    return data[:size].decode(code_page(page) or "cp1252", "replace") if kind == _NARROW_STRING else None


@contextmanager
def reading(fmt: Format) -> Iterator[None]:
    """Convert exceptions of the library, and of structures that are not as they should be."""
    try:
        yield
    except RecursionError:
        raise unsafe(fmt.label, "storages nested too deeply") from None
    except (
        OSError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        OverflowError,
        struct.error,
    ) as error:
        raise damaged(fmt.label, str(error)) from None


def code_page(number: object) -> str | None:
    """Return the codec of a Windows code page, or None if it is unknown."""
    if not isinstance(number, int):
        return None
    number &= 0xFFFF
    name = _CODE_PAGES.get(number, f"iso8859-{number - 28590}" if 28590 < number < 28607 else f"cp{number}")
    try:
        "".encode(name)
    except LookupError:
        return None
    return name
