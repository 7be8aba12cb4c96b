"""Event-based XML parsing within limits, shared by SVG and the Office formats.

A tree of a hostile file could fill the memory, so no tree is built. `parser_for` reads one document,
`Archive` a ZIP of documents without entities, and `Package` an Office file, whose documents reference each
other.
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
from kb_readers.markdown import office_title

MOST_UNPACKED_BYTES = 256 << 20
"""Maximum unpacked size of all parts that are read, regardless of the sizes declared in the ZIP."""
Attributes = Mapping[str, str]
"""Attributes of an element; a qualified name is the namespace, a space and the local name."""

_DEEPEST = 1000  # nesting of elements; the parser takes minutes for a million
_ENCRYPTED = 1  # bit of a ZIP member's flags
# Exceptions of the standard library for malformed files, and of handlers for malformed numbers.
_BROKEN = (
    zipfile.BadZipFile, zlib.error, struct.error, EOFError, LookupError, NotImplementedError, OSError,
    ValueError, expat.ExpatError,
)  # fmt: skip
_NO_MEMORY = expat.errors.codes[expat.errors.XML_ERROR_NO_MEMORY]
_READ_BYTES = 1 << 18
_LONGEST_TITLE = 500
# The beginning of an Office file from before 2007 or with a password, and the entry of a protected one.
_OLE = b"\xd0\xcf\x11\xe0"
_ENCRYPTED_PACKAGE = "EncryptedPackage".encode("utf-16-le")
_PACKED_AS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # the methods that Office uses
_LONGEST_ENTITY = 1_000
"""Characters of an entity that is put in; drawing programs abbreviate namespaces by entities."""


class Handler:
    """Receives elements as they go by; the default ignores them."""

    def start(self, name: str, attributes: Attributes) -> None:
        """Handle the start of an element."""

    def end(self, name: str) -> None:
        """Handle the end of an element."""

    def characters(self, text: str) -> None:
        """Handle text, or a piece of it."""


def local_name(name: str) -> str:
    return name.rpartition(" ")[2]


def parser_for(
    handler: Handler, label: str, name_of: Callable[[str], str] = local_name, encoding: str | None = None
) -> expat.XMLParserType:
    """Return a parser that feeds `handler`; `name_of` maps a qualified name to an element name. `encoding`
    overrides the document's declaration.

    Raises ExtractionFailed while parsing if elements are nested too deeply; `label` is the format's.
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

    parser = expat.ParserCreate(encoding, namespace_separator=" ")
    parser.buffer_text = True
    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = handler.characters
    return parser


class Archive:
    """A ZIP of documents with a limit on the unpacked size. Each method may raise ExtractionFailed."""

    def __init__(self, data: bytes, label: str) -> None:
        """Open the archive; `label` is the format's."""
        self._label = label
        self._room = MOST_UNPACKED_BYTES
        try:
            self._archive = zipfile.ZipFile(io.BytesIO(data))
        except _BROKEN as error:
            raise unsound(self._label, error) from None
        # Part names are case-insensitive.
        self._members = {each.filename.lower(): each for each in self._archive.infolist()}

    def holds(self, part: str) -> bool:
        return part.lower() in self._members

    def read(self, part: str) -> bytes:
        """Return a complete part. A missing part means a damaged file."""
        return b"".join(self._blocks(part))

    def feed(self, part: str, handler: Handler) -> None:
        """Feed an XML part to a handler. A missing part means a damaged file."""
        parser = parser_for(handler, self._label)
        parser.StartDoctypeDeclHandler = self._refuse_declarations
        try:
            for block in self._blocks(part):
                parser.Parse(block, False)
            parser.Parse(b"", True)
        except _BROKEN as error:
            raise unsound(self._label, error) from None

    def elements(self, part: str, name: str, *, is_optional: bool = True) -> Elements:
        """Return the elements of this name in an XML part; none if the part is optional and missing."""
        found = Elements(name)
        if not is_optional or self.holds(part):
            self.feed(part, found)
        return found

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
    """One Office file. Each method may raise ExtractionFailed."""

    def __init__(self, data: bytes, fmt: Format, families: tuple[str, str]) -> None:
        """Open the file; its main part has one of `families`, of which the second has macros."""
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
        if main is None or not any(family in content_type for family in families):
            raise ExtractionFailed(
                "file_corrupt", f"The file is no {self._label}, although its name says so."
            )
        self.main = main  # the name of the main part

    def relationships(self, part: str) -> dict[str, Relationship]:
        """Return the internal relationships of a part by id; "" is the package itself."""
        folder, name = posixpath.split(part)
        found = {}
        for each in self.elements(posixpath.join(folder, "_rels", f"{name}.rels"), "Relationship").attributes:
            if each.get("TargetMode") != "External":
                # A target with a leading slash is relative to the root.
                path = posixpath.join("/", folder, each.get("Target", ""))
                kind = each.get("Type", "").rpartition("/")[2]
                found[each.get("Id", "")] = Relationship(kind, posixpath.normpath(path).lstrip("/"))
        return found

    @property
    def title(self) -> str | None:
        """The title in the file's properties, or None if it is missing or a program's default."""
        parts = (outer.part for outer in self._outer.values() if outer.kind == "core-properties")
        return office_title("".join(self.elements(part, "title").text for part in parts))


class Relationship(NamedTuple):
    """A reference from a part to another part."""

    kind: str  # the last word of its type, as in "slide"
    part: str


class _ContentTypes(Handler):
    def __init__(self) -> None:
        self._by_part: dict[str, str] = {}
        self._by_extension: dict[str, str] = {}

    def of(self, part: str) -> str:
        """Return the content type of a part in lower case, or ""."""
        by_extension = self._by_extension.get(part.rpartition(".")[2].lower(), "")
        return self._by_part.get(f"/{part}".lower(), by_extension)

    def start(self, name: str, attributes: Attributes) -> None:
        content_type = attributes.get("ContentType", "").lower()
        if name == "Override":
            self._by_part[attributes.get("PartName", "").lower()] = content_type
        elif name == "Default":
            self._by_extension[attributes.get("Extension", "").lower()] = content_type


class Elements(Handler):
    """Collects the attributes of all elements of one name, and the beginning of their text."""

    def __init__(self, name: str) -> None:
        self.attributes: list[Attributes] = []
        self.text = ""
        self._name = name
        self._inside = False

    def start(self, name: str, attributes: Attributes) -> None:
        self._inside = name == self._name
        if self._inside:
            self.attributes.append(attributes)

    def end(self, _name: str) -> None:
        self._inside = False

    def characters(self, text: str) -> None:
        if self._inside and len(self.text) < _LONGEST_TITLE:
            self.text += text


def reference(attributes: Attributes, name: str = "id") -> str:
    """Return the relationship id in an attribute such as `r:id`, or ""."""
    full = f"/relationships {name}"
    return next((value for key, value in attributes.items() if key.endswith(full)), "")


def value_of(attributes: Attributes, name: str = "val") -> str:
    """Return the value of an attribute, regardless of its namespace, or ""."""
    return next((value for key, value in attributes.items() if local_name(key) == name), "")


def refuse_growing_entities(*declaration: object) -> None:
    """Refuse long entities and entities with references, which multiply; external ones are never fetched."""
    value = declaration[2]  # None for an external entity
    if isinstance(value, str) and (len(value) > _LONGEST_ENTITY or "&" in value):
        raise ExtractionFailed(
            "file_corrupt", "The file defines entities that grow when they are put in. Send it without them."
        )


def parse(
    data: bytes,
    handler: Handler,
    label: str,
    *,
    refuse_entities: Callable[..., None],
    name_of: Callable[[str], str] = local_name,
    encoding: str | None = None,
) -> None:
    """Feed a whole document with a document type to `handler`. Raises as `parser_for`, or `unsound`."""
    parser = parser_for(handler, label, name_of, encoding)
    parser.EntityDeclHandler = refuse_entities
    try:
        parser.Parse(data, True)
    except (expat.ExpatError, LookupError, ValueError) as error:  # the last two for encodings
        raise unsound(label, error) from None


def unsound(label: str, error: Exception) -> ExtractionFailed | MemoryError:
    """Convert an exception of the standard library: a damaged file, or too little memory."""
    if isinstance(error, expat.ExpatError) and error.code == _NO_MEMORY:
        return MemoryError()
    return damaged(label, str(error))
