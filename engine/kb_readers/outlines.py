"""AsciiDoc, Org, LaTeX and reStructuredText: titles become Markdown headings; nothing is run or included."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from kb_contracts.api.formats import FORMATS
from kb_readers.markdown import escaped, given_title, title_of
from kb_readers.model import Context, Extraction
from kb_readers.text import decode_marked

_DEEPEST = 6

_ASCIIDOC = re.compile(r"(={1,6}|#{1,6})[ \t]+(\S.*)")
_ASCIIDOC_BLOCK = re.compile(r"-{4,}|\.{4,}|\+{4,}|/{4,}|`{3,}")
_ORG = re.compile(r"(\*{1,20})[ \t]+(?:(?:TODO|DONE)[ \t]+)?(\S.*)")
_ORG_TAGS = re.compile(r"(?<![ \t])[ \t]+:[\w@#%:]+:[ \t]*$")
_ORG_TITLE = re.compile(r"#\+title:[ \t]*(\S.*)", re.IGNORECASE)
_ORG_BLOCK = re.compile(r"[ \t]*#\+(begin|end)_(\w+)", re.IGNORECASE)
_LATEX = re.compile(
    r"\s*\\(part|chapter|section|subsection|subsubsection|paragraph|subparagraph)\*?"
    r"(?:\[[^\]]{0,500}\])?\{((?:[^{}]|\{[^{}]{0,500}\}){1,500})\}"
)
_LATEX_LEVELS = {
    "part": 1, "chapter": 1, "section": 2, "subsection": 3, "subsubsection": 4, "paragraph": 5,
    "subparagraph": 6,
}  # fmt: skip
_LATEX_TITLE = re.compile(r"\\title(?:\[[^\]]{0,500}\])?\s{0,10}\{((?:[^{}]|\{[^{}]{0,500}\}){1,500})\}")
_LATEX_VERBATIM = re.compile(r"\s*\\(begin|end)\{(verbatim|lstlisting|minted)\*?\}")
_RST_MARKS = re.compile(r"([!-/:-@\[-`{-~])\1*")
_LATEX_COMMAND = re.compile(r"\\\\|\\[a-zA-Z]+\*?|[{}]|~")


def read_outline(data: bytes, context: Context) -> Extraction:
    """Return the whole file as one page without a number. Raises ExtractionFailed "undecodable_text"."""
    lines, declared = _LANGUAGES[context.format]
    source = decode_marked(data)
    text = "\n".join(lines(source.splitlines()))
    title = declared.search(source) if declared is not None else None
    known = given_title(_plain(title[1])) if title is not None else None
    return Extraction.of_text(FORMATS[context.format], text, known or title_of(text))


def _asciidoc(lines: list[str]) -> Iterator[str]:
    """Yield the lines. A delimited block ends with the line that began it."""
    block = ""
    for line in lines:
        bare = line.rstrip()
        if block or _ASCIIDOC_BLOCK.fullmatch(bare):
            block = "" if bare == block else block or bare
            yield escaped(line)
        elif (found := _ASCIIDOC.fullmatch(bare)) is not None:
            yield f"{'#' * len(found[1])} {found[2]}"
        else:
            yield escaped(line)


def _org(lines: list[str]) -> Iterator[str]:
    block = ""
    for line in lines:
        if (mark := _ORG_BLOCK.match(line)) is not None:
            opens, name = mark[1].lower() == "begin", mark[2].lower()
            block = (block or name) if opens else ("" if name == block else block)
            yield escaped(line)
        elif not block and (found := _ORG.fullmatch(line.rstrip())) is not None:
            yield f"{'#' * min(len(found[1]), _DEEPEST)} {_ORG_TAGS.sub('', found[2])}"
        else:
            yield escaped(line)


def _latex(lines: list[str]) -> Iterator[str]:
    verbatim = ""
    for line in lines:
        if (mark := _LATEX_VERBATIM.match(line)) is not None:
            verbatim = mark[2] if mark[1] == "begin" else ""
            yield line
        elif not verbatim and (found := _LATEX.match(line)) is not None:
            yield f"{'#' * _LATEX_LEVELS[found[1]]} {_plain(found[2])}"
            if rest := line[found.end() :].strip():
                yield escaped(rest)
        else:
            yield escaped(line)


def _rst(lines: list[str]) -> Iterator[str]:
    """Yield the lines. Adornment styles (below, or above and below) get levels in order of appearance."""
    levels: list[tuple[str, bool]] = []

    def heading(title: str, mark: str, *, is_framed: bool) -> str:
        if (kind := (mark[0], is_framed)) not in levels:
            levels.append(kind)
        return f"{'#' * min(levels.index(kind) + 1, _DEEPEST)} {title.strip()}"

    place = 0
    while place < len(lines):
        first, second, third = (line.rstrip() for line in (*lines[place : place + 3], "", "")[:3])
        if _marks(first) and third == first and _fits(second, first):
            yield heading(second, first, is_framed=True)
            place += 3
        elif not first[:1].isspace() and not _marks(first) and _marks(second) and _fits(first, second):
            yield heading(first, second, is_framed=False)
            place += 2
        else:
            yield escaped(lines[place])
            place += 1


def _marks(line: str) -> bool:
    return _RST_MARKS.fullmatch(line) is not None


def _fits(title: str, marks: str) -> bool:
    return bool(title.strip()) and len(title.strip()) <= len(marks)


def _plain(title: str) -> str:
    return " ".join(_LATEX_COMMAND.sub(" ", title).split())


_LANGUAGES: dict[str, tuple[Callable[[list[str]], Iterator[str]], re.Pattern[str] | None]] = {
    "adoc": (_asciidoc, None),
    "org": (_org, _ORG_TITLE),
    "tex": (_latex, _LATEX_TITLE),
    "rst": (_rst, None),
}
"""By format: the conversion of lines, and the declaration of a title."""
