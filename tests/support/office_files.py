"""Office files for tests: changed member by member, and made with parts that no program writes."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping
from io import BytesIO
from types import MappingProxyType

Change = Callable[[bytes], bytes]


def rewritten(
    data: bytes,
    changes: Mapping[str, Change | None],
    added: Mapping[str, str] = MappingProxyType({}),
) -> bytes:
    """The package with these members changed, left out where the change is None, or added."""
    packed = BytesIO()
    with zipfile.ZipFile(BytesIO(data)) as old, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            change = changes.get(name, bytes)
            if change is not None:
                new.writestr(name, change(old.read(name)))
        for name, text in added.items():
            new.writestr(name, text)
    return packed.getvalue()


def with_part(data: bytes, name: str, content: bytes) -> bytes:
    """The package with one member that says this."""
    return rewritten(data, {name: lambda _: content})


def with_entities(xml: bytes, declaration: bytes) -> bytes:
    """An XML file with this in a document type before its root."""
    root = xml.index(b"?>") + 2 if xml.startswith(b"<?xml") else 0
    return xml[:root] + b"<!DOCTYPE x [" + declaration + b"]>" + xml[root:]


def outside(xml: bytes) -> bytes:
    """An XML file with an entity that wants a file of this machine."""
    return with_entities(xml, b'<!ENTITY e SYSTEM "file:///etc/passwd">')


def laughs(xml: bytes) -> bytes:
    """An XML file that defines a billion of them, by entities that hold entities."""
    values = [b"ha", *(b"&e%d;" % number * 10 for number in range(9))]
    return with_entities(xml, b"".join(b'<!ENTITY e%d "%b">' % each for each in enumerate(values)))


def encrypted(data: bytes, member: str) -> bytes:
    """The package with the mark of encryption on one member."""
    changed = bytearray(data)
    name = member.encode()
    with zipfile.ZipFile(BytesIO(data)) as archive:
        changed[archive.getinfo(member).header_offset + 6] |= 1
    # In the directory at the end the flags lie 38 bytes before the name.
    changed[data.rindex(name) - 38] |= 1
    return bytes(changed)
