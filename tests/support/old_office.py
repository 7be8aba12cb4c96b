"""Small compound files (OLE): Word, Excel and PowerPoint files from before 2007, and Outlook messages."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from itertools import accumulate

_SECTOR = 512
_SMALLEST = 4096  # of a stream outside the small streams, which these files do not have
_END, _FREE, _TABLE = 0xFFFFFFFE, 0xFFFFFFFF, 0xFFFFFFFD


def compound(streams: Mapping[str, bytes]) -> bytes:
    """A compound file of streams by path, with slashes in it; zeros pad small streams."""
    names = ["", *dict.fromkeys(path[: len(name)] for path in streams for name in _prefixes(path))]
    parts = {path: data.ljust(_SMALLEST, b"\0") for path, data in streams.items()}
    tables = 1
    while tables * 128 < tables + (len(names) + 3) // 4 + sum(map(_sectors, parts.values())):
        tables += 1
    fat = [_TABLE] * tables
    directory = len(fat)
    fat += _chain(directory, (len(names) + 3) // 4)
    starts = {}
    for path, data in parts.items():
        starts[path] = len(fat)
        fat += _chain(len(fat), _sectors(data))
    fat += [_FREE] * (tables * 128 - len(fat))
    entries = b"".join(_entry(names, number, starts, parts) for number in range(len(names)))
    head = struct.pack(
        "<8s16xHHHHH6xIIIIIIIII",
        *(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", 0x3E, 3, 0xFFFE, 9, 6),
        *(0, tables, directory, 0, _SMALLEST, _END, 0, _END, 0),
    )
    head += struct.pack("<109I", *range(tables), *[_FREE] * (109 - tables))
    body = b"".join(data.ljust(_sectors(data) * _SECTOR, b"\0") for data in parts.values())
    padded = entries.ljust(_sectors(entries) * _SECTOR, b"\0")
    return head + struct.pack(f"<{len(fat)}I", *fat) + padded + body


def _prefixes(path: str) -> list[str]:
    return list(accumulate(path.split("/"), lambda one, two: f"{one}/{two}"))


def _sectors(data: bytes) -> int:
    return (len(data) + _SECTOR - 1) // _SECTOR


def _chain(first: int, count: int) -> list[int]:
    return [*range(first + 1, first + count), _END]


def _entry(names: list[str], number: int, starts: Mapping[str, int], parts: Mapping[str, bytes]) -> bytes:
    """The directory's entry of a name; each refers to its first child and to its next sibling."""
    name = names[number]
    folder = name.rpartition("/")[0]
    last = name.rpartition("/")[2] if number else "Root Entry"
    later = [at for at in range(number + 1, len(names)) if number and names[at].rpartition("/")[0] == folder]
    inner = [at for at in range(1, len(names)) if at != number and names[at].rpartition("/")[0] == name]
    kind = 2 if name in starts else 1 if number else 5
    wide = last.encode("utf-16-le")
    return struct.pack(
        "<64sHBBIII16xI16xIQ",
        *(wide, len(wide) + 2, kind, 1, _FREE, next(iter(later), _FREE), next(iter(inner), _FREE), 0),
        *(starts.get(name, _END if kind == 5 else 0), len(parts.get(name, b""))),
    )


def doc(
    paragraphs: Sequence[tuple[str, int, bytes]],
    *,
    lengths: Sequence[int] = (),
    flags: int = 0,
    version: int = 193,
    deleted: tuple[int, int] = (0, 0),
    pieces: bytes | None = None,
) -> bytes:
    """A Word file of paragraphs: text with its mark at the end, number of the style, and properties.

    Style 1 is "heading 1". `lengths` are the numbers of characters of body, footnotes, margins and so on;
    `deleted` is a range of characters that a tracked change removed.
    """
    text = "".join(words for words, _, _ in paragraphs)
    start = 1536
    ends = list(accumulate((len(words) for words, _, _ in paragraphs), initial=0))
    table = bytearray()
    places: dict[int, bytes] = {}
    plain = struct.pack("<2iHIH", 0, len(text), 0, start * 2 | 1 << 30, 0)
    parts = {
        33: pieces if pieces is not None else b"\2" + struct.pack("<I", len(plain)) + plain,
        13: struct.pack("<3I", start, start + len(text), 1),
        12: struct.pack("<3I", start, start + len(text), 2),
        1: _STYLES,
    }
    for number, part in parts.items():
        places[number] = struct.pack("<2I", len(table), len(part))
        table += part
    main = bytearray(start) + text.encode("cp1252")
    struct.pack_into("<2H", main, 0, 0xA5EC, version)
    struct.pack_into("<H", main, 10, flags)
    struct.pack_into("<i", main, 24, start)
    counts = [*(lengths or [len(text)]), *[0] * 8][:8]
    struct.pack_into("<8i", main, 0x4C if version >= 193 else 0x34, *counts)
    if version >= 193:
        for number, place in places.items():
            main[0x9A + 8 * number : 0x9A + 8 * number + 8] = place
    entries = [struct.pack("<H", style) + properties for _, style, properties in paragraphs]
    main[512:1024] = _page([start + end for end in ends], [_sized(entry) for entry in entries], 13)
    removed = [b"", b"\x03\x00\x08\x01", b""]
    main[1024:1536] = _page([start, *(start + at for at in deleted), start + len(text)], removed, 1)
    return compound({"WordDocument": bytes(main), "0Table": bytes(table)})


def _sized(entry: bytes) -> bytes:
    return bytes([len(entry) // 2 + 1]) + entry if len(entry) % 2 else bytes([0, len(entry) // 2]) + entry


def _page(offsets: Sequence[int], entries: Sequence[bytes], size: int) -> bytes:
    page = bytearray(512)
    page[511] = len(entries)
    struct.pack_into(f"<{len(offsets)}I", page, 0, *offsets)
    at = 510
    for number, entry in enumerate(entries):
        if entry:
            at = (at - len(entry)) // 2 * 2
            page[at : at + len(entry)] = entry
            page[4 * len(offsets) + size * number] = at // 2
    return bytes(page)


def _style(known: int, properties: bytes = b"") -> bytes:
    part = struct.pack("<H", 2 + len(properties)) + struct.pack("<H", 0) + properties
    body = struct.pack("<5H", known, 0xFFF << 4 | 1, 1, 0, 0) + struct.pack("<HHH", 1, 0x61, 0) + part
    return struct.pack("<H", len(body)) + body


_STYLES = struct.pack("<3H12x", 16, 2, 10) + _style(0) + _style(1)


def record(kind: int, body: bytes, instance: int = 0, *, holds_records: bool = False) -> bytes:
    """A record of a PowerPoint file."""
    return struct.pack("<2HI", instance << 4 | (15 if holds_records else 0), kind, len(body)) + body


def ppt(slides: Sequence[bytes], outline: bytes, notes: bytes = b"", *, token: int = 0xE391C05F) -> bytes:
    """A PowerPoint file of the records of slides, of their outline and of one page of notes (number 9).

    The first slide has the number 2 in the directory, and the page of notes follows the last one.
    """
    listed = record(0x03F3, struct.pack("<4I4x", 2 + len(slides), 0, 0, 9))
    lists = record(0x0FF0, outline, 0, holds_records=True) + record(0x0FF0, listed, 2, holds_records=True)
    containers = [record(0x03E8, lists, holds_records=True)]
    containers += [record(0x03EE, slide, holds_records=True) for slide in slides]
    containers.append(record(0x03F0, notes, holds_records=True))
    offsets = list(accumulate(map(len, containers), initial=0))
    end = offsets.pop()
    head = struct.pack("<I", len(offsets) << 20 | 1)
    places = record(0x1772, head + struct.pack(f"<{len(offsets)}I", *offsets))
    edit = record(0x0FF5, struct.pack("<7I", 0, 0, 0, end, 1, 0, 0))
    user = struct.pack("<2HI3I", 0, 0x0FF6, 20, 20, token, end + len(places))
    return compound({"PowerPoint Document": b"".join(containers) + places + edit, "Current User": user})


def placed(place: int, *texts: tuple[int, str]) -> bytes:
    """A slide in the outline, with its texts and their kinds."""
    listed = record(0x03F3, struct.pack("<4I4x", place, 0, 0, 255 + place))
    return listed + b"".join(shape_text(kind, text) for kind, text in texts)


def shape_text(kind: int, text: str) -> bytes:
    return record(0x0F9F, struct.pack("<I", kind)) + record(0x0FA0, text.encode("utf-16-le"))


def xls(*sheets: tuple[str, int, bytes], formats: Mapping[int, str] | None = None) -> bytes:
    """An Excel file of sheets: name, state and cells. Cell format n has the n-th of `formats`."""
    formats = formats or {}
    head = _biff(0x0809, struct.pack("<4H8x", 0x0600, 5, 0, 0)) + _biff(0x0042, struct.pack("<H", 1200))
    font = _biff(0x0031, struct.pack("<5H4B", 200, 0, 0x7FFF, 400, 0, 0, 0, 0, 0) + _wide("A", "B"))
    head += font * 4
    head += b"".join(
        _biff(0x041E, struct.pack("<H", key) + _wide(code, "H")) for key, code in formats.items()
    )
    head += b"".join(_biff(0x00E0, struct.pack("<2H16x", 0, key)) for key in [0, *formats])
    bodies = [
        _biff(0x0809, struct.pack("<4H8x", 0x0600, 0x10, 0, 0)) + cells + _biff(0x000A, b"")
        for _, _, cells in sheets
    ]
    listed = [_wide(name, "B") for name, _, _ in sheets]
    at = len(head) + sum(10 + len(name) for name in listed) + 4
    for (_, state, _), name, body in zip(sheets, listed, bodies, strict=True):
        head += _biff(0x0085, struct.pack("<IBB", at, state, 0) + name)
        at += len(body)
    return compound({"Workbook": head + _biff(0x000A, b"") + b"".join(bodies)})


def number_cell(row: int, column: int, value: float, cell_format: int = 0) -> bytes:
    return _biff(0x0203, struct.pack("<3Hd", row, column, cell_format, value))


def text_cell(row: int, column: int, text: str) -> bytes:
    return _biff(0x0204, struct.pack("<3H", row, column, 0) + _wide(text, "H"))


def _biff(kind: int, body: bytes) -> bytes:
    return struct.pack("<2H", kind, len(body)) + body


def _wide(text: str, size: str) -> bytes:
    return struct.pack(f"<{size}B", len(text), 1) + text.encode("utf-16-le")


def msg(properties: Mapping[str, bytes], fixed: Mapping[int, int] | None = None) -> bytes:
    """An Outlook message of properties by number and type, such as "0037001F", in any storage."""
    entries = b"".join(struct.pack("<IIQ", tag, 0, value) for tag, value in (fixed or {}).items())
    streams = {}
    for path, value in properties.items():
        storage, slash, name = path.rpartition("/")
        streams[f"{storage}{slash}{name if name.startswith('__') else f'__substg1.0_{name}'}"] = value
    return compound({"__properties_version1.0": bytes(32) + entries, **streams})
