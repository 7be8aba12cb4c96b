"""The kinds of files that are taken in, by the ends of their names.

One list for the engine, the simulator and the server, which refuses another kind before its bytes are sent.
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
"""What a document is in a search's filter: a note, or by the format of its file."""


@dataclass(frozen=True, slots=True)
class Format:
    """One kind of file.

    `name` is the canonical name, `label` the one for people; `extensions` are in lower case, with the dot.
    `doc_type` is what a document made of such a file is in a search's filter. `takes_ocr`: it has pages or
    pixels to look at, so that OCR may be forced.
    """

    name: str
    label: str
    extensions: tuple[str, ...]
    mime_type: str
    doc_type: DocType
    takes_ocr: bool = False


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
"""Every format that is taken, by its canonical name."""

_BY_EXTENSION = {extension: each for each in _ALL for extension in each.extensions}


class UnsupportedFormat(ValueError):
    """The end of a name tells no format that is taken; the message says which are."""

    code = "unsupported_format"

    def __init__(self, extension: str) -> None:
        *most, last = (f"{each.label} ({', '.join(each.extensions)})" for each in _ALL)
        self.message = (
            f"Unsupported file format: {extension[:20] or 'no extension'}. Use {', '.join(most)} or {last}; "
            "other text is taken where its part says Content-Type: text/plain"
        )
        super().__init__(self.message)


def format_of(filename: str, content_type: str = "") -> Format:
    """The format of a file by its extension, in any case.

    One that is not known is text where it is sent as that: with the `content_type` text/plain.

    Raises:
        UnsupportedFormat: none that is taken.
    """
    extension = PurePath(filename).suffix.lower()
    if (known := _BY_EXTENSION.get(extension)) is not None:
        return known
    if content_type.partition(";")[0].strip().lower() == FORMATS["txt"].mime_type:
        return FORMATS["txt"]
    raise UnsupportedFormat(extension)
