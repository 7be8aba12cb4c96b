"""XML element by element, to a handler that keeps what it wants: the one driver of SVG and Office files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from xml.parsers import expat

from kb_readers.failures import ExtractionFailed, damaged, unsafe

DEEPEST = 1000
"""Elements in elements; the parser takes minutes for a million of them."""

_NO_MEMORY = expat.errors.codes[expat.errors.XML_ERROR_NO_MEMORY]

Attributes = Mapping[str, str]
"""Of an element; a name with a namespace is that, a space and the local name."""


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
        if depth > DEEPEST:
            raise unsafe(label, f"elements {DEEPEST:,} deep")
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


def unsound(label: str, error: Exception) -> ExtractionFailed | MemoryError:
    """What it means that a reader of the standard library gave up: a damaged file, or too little memory."""
    if isinstance(error, expat.ExpatError) and error.code == _NO_MEMORY:
        return MemoryError()
    return damaged(label, str(error))
