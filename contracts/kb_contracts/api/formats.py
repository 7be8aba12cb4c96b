"""The supported file formats, by extension.

Engine, simulator and server share this list; the server refuses an unsupported file before its bytes are
sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from types import MappingProxyType
from typing import Literal, TypeAlias

DocType: TypeAlias = Literal[
    "note",
    "text",
    "markdown",
    "html",
    "pdf",
    "docx",
    "pptx",
    "xlsx",
    "csv",
    "image",
    "epub",
    "email",
    "code",
    "data",
]
"""Type of a document in search filters: a note, or the format of its file."""


@dataclass(frozen=True, slots=True)
class Format:
    """One file format.

    `name` is the canonical name, `label` the name for people; `extensions` are in lower case, with the dot.
    `doc_type` is the type, in search filters, of a document made from such a file. `takes_ocr`: it has pages
    or pixels, so that OCR can be forced.
    """

    name: str
    label: str
    extensions: tuple[str, ...]
    mime_type: str
    doc_type: DocType
    takes_ocr: bool = False

    @property
    def is_text(self) -> bool:
        """True if a file is text in one encoding, which its sender may declare."""
        return self.mime_type.startswith("text/") or self.doc_type == "data"


_OPEN_XML = "application/vnd.openxmlformats-officedocument."

_ALL = (
    Format("pdf", "PDF", (".pdf",), "application/pdf", "pdf", takes_ocr=True),
    Format("docx", "DOCX", (".docx",), f"{_OPEN_XML}wordprocessingml.document", "docx"),
    Format("pptx", "PPTX", (".pptx",), f"{_OPEN_XML}presentationml.presentation", "pptx"),
    Format("xlsx", "XLSX", (".xlsx",), f"{_OPEN_XML}spreadsheetml.sheet", "xlsx"),
    Format("csv", "CSV", (".csv", ".tsv"), "text/csv", "csv"),
    Format("html", "HTML", (".html", ".htm"), "text/html", "html"),
    Format("svg", "SVG", (".svg",), "image/svg+xml", "image"),
    Format("jpg", "JPG", (".jpg", ".jpeg"), "image/jpeg", "image", takes_ocr=True),
    Format("png", "PNG", (".png",), "image/png", "image", takes_ocr=True),
    Format("md", "Markdown", (".md", ".markdown"), "text/markdown", "markdown"),
    Format("txt", "text", (".txt", ".text", ".log"), "text/plain", "text"),
    Format("rst", "reStructuredText", (".rst",), "text/x-rst", "text"),
    Format("epub", "EPUB", (".epub",), "application/epub+zip", "epub"),
    Format("eml", "e-mail", (".eml",), "message/rfc822", "email"),
    Format("json", "JSON", (".json", ".jsonl"), "application/json", "data"),
    Format("yaml", "YAML", (".yaml", ".yml"), "application/yaml", "data"),
    Format("toml", "TOML", (".toml",), "application/toml", "data"),
    *(
        Format(name, label, tuple(extensions), f"text/x-{name}", "code")
        for name, label, *extensions in (
            ("py", "Python", ".py", ".pyi"),
            ("js", "JavaScript", ".js", ".mjs", ".cjs", ".jsx"),
            ("ts", "TypeScript", ".ts", ".mts", ".cts"),
            ("tsx", "TSX", ".tsx"),
            ("go", "Go", ".go"),
            ("rs", "Rust", ".rs"),
            ("java", "Java", ".java"),
            ("kt", "Kotlin", ".kt", ".kts"),
            ("scala", "Scala", ".scala"),
            ("swift", "Swift", ".swift"),
            ("c", "C", ".c", ".h"),
            ("cpp", "C++", ".cpp", ".cc", ".cxx", ".hpp", ".hh", ".hxx"),
            ("cs", "C#", ".cs"),
            ("rb", "Ruby", ".rb"),
            ("php", "PHP", ".php"),
            ("sh", "shell", ".sh", ".bash"),
            ("lua", "Lua", ".lua"),
        )
    ),
)

FORMATS: Mapping[str, Format] = MappingProxyType({each.name: each for each in _ALL})
"""The supported formats by canonical name."""

_BY_EXTENSION = {extension: each for each in _ALL for extension in each.extensions}


class UnsupportedFormat(ValueError):
    """The extension of a name belongs to no supported format; the message lists the supported ones."""

    code = "unsupported_format"

    def __init__(self, extension: str) -> None:
        *most, last = (f"{each.label} ({', '.join(each.extensions)})" for each in _ALL)
        self.message = (
            f"Unsupported file format: {extension[:20] or 'no extension'}. Use {', '.join(most)} or {last}; "
            "other text is taken where its part says Content-Type: text/plain"
        )
        super().__init__(self.message)


def format_of(filename: str, content_type: str = "") -> Format:
    """Return the format of a file by its extension, in any case.

    A file of unknown extension is text if its `content_type` is text/plain.

    Raises:
        UnsupportedFormat: the format is not supported.
    """
    extension = PurePath(filename).suffix.lower()
    if (known := _BY_EXTENSION.get(extension)) is not None:
        return known
    if content_type.partition(";")[0].strip().lower() == FORMATS["txt"].mime_type:
        return FORMATS["txt"]
    raise UnsupportedFormat(extension)
