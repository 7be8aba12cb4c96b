"""Edits of a note's text that leave the rest unchanged. Pure functions from the old text to the new."""

from __future__ import annotations

import difflib

from kb_contracts.semantics.headings import headings
from kb_server.tool import INVALID, ToolError

_NAMED = 20
_QUOTED_CHARS = 80


def difference(before: str, after: str) -> str:
    """Return the differing lines, in the form of `diff -u`; empty if the texts are equal."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), "before", "now", lineterm="")
    return "\n".join(lines)


def appended(text: str, addition: str) -> str:
    """Return the text with an addition at its end, on a line of its own."""
    between = "" if not text or text.endswith("\n") else "\n"
    return f"{text}{between}{addition}"


def replaced(text: str, old: str, new: str) -> str:
    """Return the text with `new` in place of the only occurrence of `old`.
    Raises ToolError: `text_not_found` or `text_not_unique`.
    """
    count = text.count(old) if old else 0
    if count == 1:
        return text.replace(old, new)
    quoted = old[:_QUOTED_CHARS]
    if count == 0:
        raise ToolError(
            "text_not_found",
            f"{quoted!r} is not in the note. Read the note with kb_get, and pass `old` exactly as in its "
            "text, including white space and line ends.",
            parameter="old",
        )
    raise ToolError(
        "text_not_unique",
        f"{quoted!r} occurs {count} times in the note. Pass a longer text around the intended place.",
        parameter="old",
        count=count,
    )


def section_replaced(text: str, section: str, body: str) -> str:
    """Return the text with a new body below a Markdown heading, up to the next heading that is not deeper.

    `section` is the heading without its marks.
    Raises ToolError: `section_not_found`, which names the existing ones, `section_not_unique`, or the body
    would put later headings into a code block.
    """
    there = list(headings(text))
    titles = [" ".join(each.title.split()) for each in there]
    wanted = " ".join(section.strip().lstrip("#").split())
    count = titles.count(wanted)
    if count == 0:
        known = f"It has {', '.join(map(repr, titles[:_NAMED]))}." if titles else "It has no headings."
        words = f"The note has no section {section[:_QUOTED_CHARS]!r}. {known}"
        raise ToolError("section_not_found", words, quotes=True, parameter="section")
    if count > 1:
        words = f"The note has {count} sections {section[:_QUOTED_CHARS]!r}. Use `old` and `new` instead."
        raise ToolError("section_not_unique", words, parameter="section", count=count)
    place = titles.index(wanted)
    heading, behind = there[place], there[place + 1 :]
    while behind and behind[0].level > heading.level:
        del behind[0]
    rest = text[behind[0].start :] if behind else ""
    content = body.strip("\n")
    after = f"{text[: heading.end]}\n\n{content}\n{chr(10) if rest else ''}{rest}"
    if sum(each.start >= len(after) - len(rest) for each in headings(after)) < len(behind):
        words = "`text` begins a block of code that it does not end: the sections behind it would be in it."
        raise ToolError(INVALID, words, parameter="text")
    return after


def edited(
    text: str, *, append: str | None, old: str | None, new: str | None, section: str | None, body: str | None
) -> str:
    """Return the text after the one requested edit.
    Raises ToolError: there is not exactly one edit, or it does not fit the text.
    """
    if append is not None and old is new is section is body is None:
        return appended(text, append)
    if old is not None and new is not None and append is section is body is None:
        return replaced(text, old, new)
    if section is not None and body is not None and append is old is new is None:
        return section_replaced(text, section, body)
    raise ToolError(INVALID, "Pass `append`, or `old` and `new`, or `section` and `text`: one edit a call.")
