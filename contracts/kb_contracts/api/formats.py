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
    is_plain: bool = False
    """True if the file is stored as its decoded text, without headings."""

    @property
    def is_text(self) -> bool:
        """True if a file is text in one encoding, which its sender may declare."""
        return self.is_plain or self.mime_type.startswith("text/") or self.doc_type == "data"


_OPEN_XML = "application/vnd.openxmlformats-officedocument."
_OPEN_DOCUMENT = "application/vnd.oasis.opendocument."

_PLAIN: tuple[tuple[str, str, str, DocType, *tuple[str, ...]], ...] = (
    ("json", "JSON", "application/json", "data", ".json", ".jsonl", ".ndjson"),
    ("yaml", "YAML", "application/yaml", "data", ".yaml", ".yml"),
    ("toml", "TOML", "application/toml", "data", ".toml"),
    ("ini", "INI", "text/x-ini", "data", ".ini", ".cfg", ".properties"),
    ("ics", "iCalendar", "text/calendar", "data", ".ics"),
    ("sql", "SQL", "application/sql", "code", ".sql"),
    ("css", "CSS", "text/css", "code", ".css"),
    ("vue", "Vue", "text/x-vue", "code", ".vue"),
)
"""Formats without a reader: their text is stored as it is."""

_ALL = (
    Format("pdf", "PDF", (".pdf",), "application/pdf", "pdf", takes_ocr=True),
    Format("docx", "DOCX", (".docx", ".docm"), f"{_OPEN_XML}wordprocessingml.document", "docx"),
    Format("pptx", "PPTX", (".pptx", ".pptm"), f"{_OPEN_XML}presentationml.presentation", "pptx"),
    Format("xlsx", "XLSX", (".xlsx", ".xlsm"), f"{_OPEN_XML}spreadsheetml.sheet", "xlsx"),
    Format("odt", "ODT", (".odt",), f"{_OPEN_DOCUMENT}text", "docx"),
    Format("ods", "ODS", (".ods",), f"{_OPEN_DOCUMENT}spreadsheet", "xlsx"),
    Format("odp", "ODP", (".odp",), f"{_OPEN_DOCUMENT}presentation", "pptx"),
    Format("rtf", "RTF", (".rtf",), "application/rtf", "docx"),
    Format("doc", "DOC", (".doc", ".dot"), "application/msword", "docx"),
    Format("xls", "XLS", (".xls", ".xlt"), "application/vnd.ms-excel", "xlsx"),
    Format("ppt", "PPT", (".ppt", ".pps"), "application/vnd.ms-powerpoint", "pptx"),
    Format("csv", "CSV", (".csv", ".tsv"), "text/csv", "csv"),
    Format("html", "HTML", (".html", ".htm", ".xhtml"), "text/html", "html"),
    Format("mhtml", "saved page", (".mhtml", ".mht"), "multipart/related", "html"),
    Format("svg", "SVG", (".svg",), "image/svg+xml", "image"),
    Format("jpg", "JPG", (".jpg", ".jpeg"), "image/jpeg", "image", takes_ocr=True),
    Format("png", "PNG", (".png",), "image/png", "image", takes_ocr=True),
    Format("md", "Markdown", (".md", ".markdown", ".mdx"), "text/markdown", "markdown"),
    Format("txt", "text", (".txt", ".text", ".log"), "text/plain", "text", is_plain=True),
    Format("rst", "reStructuredText", (".rst",), "text/x-rst", "text"),
    Format("adoc", "AsciiDoc", (".adoc", ".asciidoc"), "text/x-asciidoc", "text"),
    Format("org", "Org", (".org",), "text/x-org", "text"),
    Format("tex", "LaTeX", (".tex",), "text/x-tex", "text"),
    Format("vtt", "subtitles", (".vtt", ".srt"), "text/vtt", "text"),
    Format("ipynb", "Jupyter notebook", (".ipynb",), "application/x-ipynb+json", "code"),
    Format("epub", "EPUB", (".epub",), "application/epub+zip", "epub"),
    Format("eml", "e-mail", (".eml",), "message/rfc822", "email"),
    Format("msg", "Outlook message", (".msg",), "application/vnd.ms-outlook", "email"),
    Format("xml", "XML", (".xml",), "application/xml", "data"),
    *(
        Format(name, label, tuple(extensions), mime_type, doc_type, is_plain=True)
        for name, label, mime_type, doc_type, *extensions in _PLAIN
    ),
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
_TEXTS_BY_NAME = frozenset(
    """authors changelog changes codeowners contributing contributors copying copyright credits dockerfile
    gemfile history install jenkinsfile justfile license licence maintainers makefile manifest news notice
    procfile rakefile readme release security thanks todo vagrantfile version""".split()  # noqa: SIM905 - read as words
)
"""Names of text files that have no extension, in lower case."""
ARCHIVES = (".zip", ".mbox")
"""Extensions of archives, which `kb add` expands and which are no format."""


class UnsupportedFormat(ValueError):
    """The extension of a name belongs to no supported format; the message lists the supported ones, or names
    the command that expands archives. `reason` is the message without the list.
    """

    code = "unsupported_format"

    def __init__(self, extension: str) -> None:
        self.reason = self.message = f"Unsupported file format: {extension[:20] or 'no extension'}."
        if extension in ARCHIVES:
            self.reason += (
                " An archive is not expanded here: send its members, or run `kb add` on it, which does"
            )
            self.message = self.reason
        else:
            *most, last = (f"{each.label} ({', '.join(each.extensions)})" for each in _ALL)
            self.message += f" Use {', '.join(most)} or {last}; "
            self.message += "other text is taken where its part says Content-Type: text/plain"
        super().__init__(self.message)


def format_of(filename: str, content_type: str = "") -> Format:
    """Return the format of a file by its extension, or by the name of a usual file without one, in any case.

    A file of unknown extension is text if its `content_type` is text/plain.
    Raises UnsupportedFormat: the format is not supported.
    """
    extension = PurePath(filename).suffix.lower()
    if (known := _BY_EXTENSION.get(extension)) is not None:
        return known
    declared = content_type.partition(";")[0].strip().lower()
    if PurePath(filename).name.lower() in _TEXTS_BY_NAME or declared == FORMATS["txt"].mime_type:
        return FORMATS["txt"]
    raise UnsupportedFormat(extension)
