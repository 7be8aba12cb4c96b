"""An Office file: a ZIP of XML parts that point to one another, read within bounds and without entities."""

from __future__ import annotations

import io
import posixpath
import zipfile
import zlib
from collections.abc import Callable, Mapping
from typing import NamedTuple, NoReturn
from xml.parsers import expat  # entities are refused below, before any is expanded

from kb_simulator.extract.model import MAX_TEXT_CHARS, ExtractionFailed, check_lock, too_much_text

Attributes = Mapping[str, str]
_BROKEN = (
    zipfile.BadZipFile, zlib.error, expat.ExpatError, NotImplementedError, RuntimeError, OSError, EOFError,
    LookupError, ValueError,
)  # fmt: skip


class Target(NamedTuple):
    """What a part points to; `kind` is the last word of the relationship's type."""

    kind: str
    part: str


class Package:
    """The parts of a file. Every method may raise ExtractionFailed: `file_corrupt` or `extraction_memory`.

    To open one that is locked raises `file_encrypted`.
    """

    def __init__(self, data: bytes, label: str) -> None:
        check_lock(data, label)
        self._label = label
        self._room = MAX_TEXT_CHARS
        try:
            self._archive = zipfile.ZipFile(io.BytesIO(data))
        except _BROKEN as error:
            self.refuse(str(error))

    def main(self, folder: str) -> str:
        """The part that all others hang on, which lies in `folder`."""
        targets = self.targets("").values()
        part = next((each.part for each in targets if each.kind == "officeDocument"), "")
        if not part.startswith(f"{folder}/"):
            self.refuse("there is no such document in it")
        return part

    def walk(
        self,
        part: str,
        start: Callable[[str, Attributes], None],
        end: Callable[[str], None] = lambda _: None,
        characters: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Show the elements of a part, by their local names."""
        parser = expat.ParserCreate(namespace_separator=" ")
        parser.buffer_text = True
        parser.StartElementHandler = lambda name, attributes: start(name.rpartition(" ")[2], attributes)
        parser.EndElementHandler = lambda name: end(name.rpartition(" ")[2])
        parser.CharacterDataHandler = characters
        parser.EntityDeclHandler = lambda *_: self.refuse("it declares XML entities, which Office never does")
        try:
            parser.Parse(self._read(part), True)
        except _BROKEN as error:
            self.refuse(str(error))

    def targets(self, part: str) -> dict[str, Target]:
        """What a part points to inside the file, by id; "" is the file itself."""
        folder, name = posixpath.split(part)
        path = posixpath.join(folder, "_rels", f"{name}.rels")
        found: dict[str, Target] = {}

        def start(element: str, attributes: Attributes) -> None:
            if element == "Relationship" and attributes.get("TargetMode") != "External":
                kind = attributes.get("Type", "").rpartition("/")[2]
                target = posixpath.normpath(posixpath.join("/", folder, attributes.get("Target", "")))
                found[attributes.get("Id", "")] = Target(kind, target.lstrip("/"))

        if path in self._archive.namelist():
            self.walk(path, start)
        return found

    def refuse(self, why: str) -> NoReturn:
        """Raise ExtractionFailed: `file_corrupt`."""
        raise ExtractionFailed(
            "file_corrupt", f"This is no readable {self._label} file: {why}. Save it again."
        )

    def _read(self, part: str) -> bytes:
        with self._archive.open(part) as opened:
            # The announced size is the sender's word; what is read is bounded whatever it says.
            xml = opened.read(self._room + 1)
        self._room -= len(xml)
        if self._room < 0:
            raise too_much_text()
        return xml


def reference(attributes: Attributes) -> str:
    """The id of the relationship that an element names."""
    return next((value for name, value in attributes.items() if name.endswith("/relationships id")), "")
