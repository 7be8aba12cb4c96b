"""Edits of a note's text that leave the rest of it as it is. Pure: the text before, the text after."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from kb_server.document_marks import NOTICE
from kb_server.tool import INVALID, ToolError

_HEADING = re.compile(r" {0,3}(?P<marks>#{1,6})(?:[ \t]+(?P<title>.*?))?(?:[ \t]+#+)?[ \t]*$")
_FENCE = re.compile(r" {0,3}(?P<fence>`{3,}|~{3,})(?P<rest>.*)$")
_NAMED = 20
_QUOTED_CHARS = 80


@dataclass(frozen=True, slots=True)
class _Heading:
    """A heading of Markdown, the line `[start:end]` of its text."""

    title: str
    level: int
    start: int
    end: int


def difference(before: str, after: str) -> str:
    """The lines that differ, in the form of `diff -u`; empty where none does."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), "before", "now", lineterm="")
    return "\n".join(lines)


def appended(text: str, addition: str) -> str:
    """The text with something added at its end, on a line of its own."""
    between = "" if not text or text.endswith("\n") else "\n"
    return f"{text}{between}{addition}"


def replaced(text: str, old: str, new: str) -> str:
    """The text with `new` for the one place where `old` stands.

    Raises:
        ToolError: `text_not_found` or `text_not_unique`.
    """
    count = text.count(old) if old else 0
    if count == 1:
        return text.replace(old, new)
    quoted = old[:_QUOTED_CHARS]
    if count == 0:
        raise ToolError(
            "text_not_found",
            f"{quoted!r} does not stand in the note. Read it with kb_get, and pass `old` exactly as it "
            "stands there, white space and line ends too.",
            parameter="old",
        )
    raise ToolError(
        "text_not_unique",
        f"{quoted!r} stands {count} times in the note. Pass more of what is around the one that you mean.",
        parameter="old",
        count=count,
    )


def section_replaced(text: str, section: str, body: str) -> str:
    """The text with another body below a heading of Markdown, up to the next one that is not deeper.

    `section` is the heading without its marks.

    Raises:
        ToolError: `section_not_found`, which names those there are, or `section_not_unique`.
    """
    headings = _headings(text)
    wanted = " ".join(section.strip().lstrip("#").split())
    found = [place for place, heading in enumerate(headings) if heading.title == wanted]
    if not found:
        titles = [heading.title for heading in headings[:_NAMED]]
        known = f"It has {', '.join(map(repr, titles))}." if titles else "It has no headings."
        words = f"The note has no section {section[:_QUOTED_CHARS]!r}. {known}"
        raise ToolError("section_not_found", words, notice=NOTICE, parameter="section")
    if len(found) > 1:
        words = (
            f"The note has {len(found)} sections {section[:_QUOTED_CHARS]!r}. Use `old` and `new` instead."
        )
        raise ToolError("section_not_unique", words, parameter="section", count=len(found))
    heading, later = headings[found[0]], headings[found[0] + 1 :]
    end = next((each.start for each in later if each.level <= heading.level), len(text))
    line = text[heading.start : heading.end].rstrip("\r\n")
    after = text[end:]
    content = body.strip("\n")
    return f"{text[: heading.start]}{line}\n\n{content}\n{chr(10) if after else ''}{after}"


def _headings(text: str) -> list[_Heading]:
    """The headings that begin with `#`, outside of fenced blocks."""
    headings: list[_Heading] = []
    start, fence = 0, ""
    for line in text.splitlines(keepends=True):
        bare = line.rstrip("\r\n")
        if (opening := _FENCE.match(bare)) and not fence:
            fence = opening["fence"]
        elif fence:
            if opening and opening["fence"].startswith(fence) and not opening["rest"].strip():
                fence = ""
        elif heading := _HEADING.match(bare):
            title = " ".join((heading["title"] or "").split())
            headings.append(_Heading(title, len(heading["marks"]), start, start + len(line)))
        start += len(line)
    return headings


def edited(
    text: str, *, append: str | None, old: str | None, new: str | None, section: str | None, body: str | None
) -> str:
    """The text after the one edit that is asked for.

    Raises:
        ToolError: not one edit but none or several, or it does not fit the text.
    """
    if append is not None and old is new is section is body is None:
        return appended(text, append)
    if old is not None and new is not None and append is section is body is None:
        return replaced(text, old, new)
    if section is not None and body is not None and append is old is new is None:
        return section_replaced(text, section, body)
    raise ToolError(INVALID, "Pass `append`, or `old` and `new`, or `section` and `text`: one edit a call.")
