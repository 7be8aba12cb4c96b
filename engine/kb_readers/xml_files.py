"""XML element by element, to a handler that keeps what it wants, within bounds: what SVG and Office share.

A tree of a hostile file could fill the memory, so none is built. `parser_for` reads one document, `Archive` a
ZIP of them, without entities, and `Package` an Office file, whose documents point to one another.
"""

from __future__ import annotations

import io
import posixpath
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple
from xml.parsers import expat

from kb_contracts.api.formats import Format
from kb_readers.failures import ExtractionFailed, damaged, locked, unsafe
from kb_readers.markdown import one_line

MOST_UNPACKED_BYTES = 256 << 20
"""What the parts that are read may unpack to, all together, whatever the ZIP says of their sizes."""
Attributes = Mapping[str, str]
"""Of an element; a name with a namespace is that, a space and the local name."""

_DEEPEST = 1000  # elements in elements; the parser takes minutes for a million of them
_ENCRYPTED = 1  # the bit of a zip member's flags
# What the standard library lets through on an unsound file, and a handler on a number that is none.
_BROKEN = (
    zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, OSError, ValueError,
    expat.ExpatError,
)  # fmt: skip
_NO_MEMORY = expat.errors.codes[expat.errors.XML_ERROR_NO_MEMORY]
_READ_BYTES = 1 << 18
_LONGEST_TITLE = 500
# How an Office file begins that is from before 2007 or locked with a password, and what a locked one holds.
_OLE = b"\xd0\xcf\x11\xe0"
_ENCRYPTED_PACKAGE = "EncryptedPackage".encode("utf-16-le")
_PACKED_AS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # what Office writes
# What a program names a presentation that nobody has named.
_NO_TITLES = frozenset(["", "untitled", "powerpoint presentation"])


class Handler:
    """Looks at elements as they go by, and passes over what it does not define."""

    def start(self, name: str, attributes: Attributes) -> None:
        """An element begins."""

    def end(self, name: str) -> None:
        """An element ends."""

    def characters(self, text: str) -> None:
        """Text, or a piece of it."""


def local_name(name: str) -> str:
    """The name without its namespace."""
    return name.rpartition(" ")[2]


def parser_for(
    handler: Handler, label: str, name_of: Callable[[str], str] = local_name
) -> expat.XMLParserType:
    """A parser that feeds `handler`, with elements by the name that `name_of` makes of namespace and name.

    Raises ExtractionFailed where the elements are too deep; `label` is the format's.
    """
    depth = 0

    def start(name: str, attributes: dict[str, str]) -> None:
        nonlocal depth
        depth += 1
        if depth > _DEEPEST:
            raise unsafe(label, f"elements {_DEEPEST:,} deep")
        handler.start(name_of(name), attributes)

    def end(name: str) -> None:
        nonlocal depth
        depth -= 1
        handler.end(name_of(name))

    parser = expat.ParserCreate(namespace_separator=" ")
    parser.buffer_text = True
    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = handler.characters
    return parser


class Archive:
    """A ZIP of documents, held to what it may unpack to. Every method may raise ExtractionFailed."""

    def __init__(self, data: bytes, label: str) -> None:
        """Open it; `label` is the format's."""
        self._label = label
        self._room = MOST_UNPACKED_BYTES
        try:
            self._archive = zipfile.ZipFile(io.BytesIO(data))
        except _BROKEN as error:
            raise unsound(self._label, error) from None
        # Names of parts are equal whatever their case.
        self._members = {each.filename.lower(): each for each in self._archive.infolist()}

    def holds(self, part: str) -> bool:
        """Whether there is such a part."""
        return part.lower() in self._members

    def read(self, part: str) -> bytes:
        """A part, whole. One that is not there is a damaged file."""
        return b"".join(self._blocks(part))

    def feed(self, part: str, handler: Handler) -> None:
        """Pass a part, which is XML, to a handler. One that is not there is a damaged file."""
        parser = parser_for(handler, self._label)
        parser.StartDoctypeDeclHandler = self._refuse_declarations
        try:
            for block in self._blocks(part):
                parser.Parse(block, False)
            parser.Parse(b"", True)
        except _BROKEN as error:
            raise unsound(self._label, error) from None

    def _blocks(self, part: str) -> Iterator[bytes]:
        member = self._members.get(part.lower())
        if member is None:
            raise damaged(self._label, f"{part[:_LONGEST_TITLE]} is missing")
        if member.flag_bits & _ENCRYPTED:
            raise locked(self._label)
        if member.compress_type not in _PACKED_AS:
            raise damaged(self._label, "it is packed in an unknown way")
        try:
            with self._archive.open(member) as opened:
                while piece := opened.read(_READ_BYTES):
                    self._room -= len(piece)
                    if self._room < 0:
                        raise unsafe(self._label, f"it unpacks to more than {MOST_UNPACKED_BYTES:,} bytes")
                    yield piece
        except _BROKEN as error:
            raise unsound(self._label, error) from None

    def _refuse_declarations(self, *_: object) -> None:
        raise ExtractionFailed(
            "file_corrupt",
            f"The {self._label} file defines entities or a document type, which no program does there; "
            "it is not read.",
        )


class Package(Archive):
    """One Office file. Every method may raise ExtractionFailed."""

    def __init__(self, data: bytes, fmt: Format, family: str) -> None:
        """Open it; `family` stands in the content type of every main part of this format."""
        if data.startswith(_OLE):
            if _ENCRYPTED_PACKAGE in data:
                raise locked(fmt.label)
            raise ExtractionFailed(
                "file_corrupt",
                f"The file is in the format of before 2007. Save it as {fmt.label} and send it again.",
            )
        super().__init__(data, fmt.label)
        self._outer = self.relationships("")
        main = next((each.part for each in self._outer.values() if each.kind == "officeDocument"), None)
        types = _ContentTypes()
        if main is not None:
            self.feed("[Content_Types].xml", types)
        content_type = types.of(main or "")
        if "macroenabled" in content_type:
            raise ExtractionFailed(
                "unsupported_format",
                f"The file holds macros. Save it as {self._label} without macros and try again.",
            )
        if main is None or family not in content_type:
            raise ExtractionFailed(
                "file_corrupt", f"The file is no {self._label}, although its name says so."
            )
        self.main = main
        """The name of the part that everything hangs on."""

    def relationships(self, part: str) -> dict[str, Relationship]:
        """Where a part points to inside the file, by id; "" is the package itself."""
        folder, name = posixpath.split(part)
        found = _Relationships(folder)
        path = posixpath.join(folder, "_rels", f"{name}.rels")
        if self.holds(path):
            self.feed(path, found)
        return found.by_id

    @property
    def title(self) -> str | None:
        """What the file's properties say, unless it is what programs write by themselves."""
        found = _Text("title")
        for outer in self._outer.values():
            if outer.kind == "core-properties" and self.holds(outer.part):
                self.feed(outer.part, found)
        title = one_line(found.text)[:_LONGEST_TITLE]
        return None if title.lower() in _NO_TITLES else title


class Relationship(NamedTuple):
    """Where a part points to."""

    kind: str
    """The last word of its type, as in "slide"."""
    part: str


class _Relationships(Handler):
    def __init__(self, folder: str) -> None:
        self.by_id: dict[str, Relationship] = {}
        self._folder = folder

    def start(self, name: str, attributes: Attributes) -> None:
        if name == "Relationship" and attributes.get("TargetMode") != "External":
            # A target that begins with a slash is one from the root.
            path = posixpath.join("/", self._folder, attributes.get("Target", ""))
            kind = attributes.get("Type", "").rpartition("/")[2]
            part = posixpath.normpath(path).lstrip("/")
            self.by_id[attributes.get("Id", "")] = Relationship(kind, part)


class _ContentTypes(Handler):
    def __init__(self) -> None:
        self._by_part: dict[str, str] = {}
        self._by_extension: dict[str, str] = {}

    def of(self, part: str) -> str:
        """In lower case; "" where the file says none."""
        by_extension = self._by_extension.get(part.rpartition(".")[2].lower(), "")
        return self._by_part.get(f"/{part}".lower(), by_extension)

    def start(self, name: str, attributes: Attributes) -> None:
        content_type = attributes.get("ContentType", "").lower()
        if name == "Override":
            self._by_part[attributes.get("PartName", "").lower()] = content_type
        elif name == "Default":
            self._by_extension[attributes.get("Extension", "").lower()] = content_type


class _Text(Handler):
    """Collects the text of the elements of one name."""

    def __init__(self, element: str) -> None:
        self.text = ""
        self._element = element
        self._inside = False

    def start(self, name: str, _attributes: Attributes) -> None:
        self._inside = name == self._element

    def end(self, _name: str) -> None:
        self._inside = False

    def characters(self, text: str) -> None:
        if self._inside and len(self.text) < _LONGEST_TITLE:
            self.text += text


def reference(attributes: Attributes, name: str = "id") -> str:
    """The id of the relationship that an element names, as in `r:id`; "" where it names none."""
    full = f"/relationships {name}"
    return next((value for key, value in attributes.items() if key.endswith(full)), "")


def value_of(attributes: Attributes, name: str = "val") -> str:
    """Of an attribute, whatever its namespace; "" where there is none."""
    return next((value for key, value in attributes.items() if local_name(key) == name), "")


def unsound(label: str, error: Exception) -> ExtractionFailed | MemoryError:
    """What it means that a reader of the standard library gave up: a damaged file, or too little memory."""
    if isinstance(error, expat.ExpatError) and error.code == _NO_MEMORY:
        return MemoryError()
    return damaged(label, str(error))
