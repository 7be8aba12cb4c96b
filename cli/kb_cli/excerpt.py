"""The part of a long passage that `kb search` shows: the part with the most words of the query.

The passage is divided into lines, and its paragraphs into pieces at white space. Of a table these are the
header row and the rows with the most words, of other texts the best piece and its neighbours.
"""

from __future__ import annotations

import re

from kb_contracts.semantics.marking import marker

_ROW = "|"
"""Beginning of a row of a table."""


def excerpt(text: str, query: str, most_chars: int) -> str:
    """Return at most `most_chars` characters besides the header row, with `…` for each part left out."""
    pieces = [piece for line in text.splitlines() if line.strip() for piece in _pieces(line, most_chars)]
    if not pieces:
        return ""
    mark = marker(query)
    words = [{part.casefold() for part, is_marked in mark(piece) if is_marked} for piece in pieces]
    places = range(len(pieces))
    best = max(
        places, key=lambda place: (len(words[place]), len(set().union(*words[max(0, place - 1) :][:3])))
    )
    is_table = pieces[best].startswith(_ROW) and bool(words[best])
    ranked = sorted(places, key=lambda place: (-len(words[place]) if is_table else 0, abs(place - best)))
    chosen, left = [], most_chars
    for place in ranked:
        left -= len(pieces[place])
        if left < 0 or (is_table and not words[place]):
            break
        chosen.append(place)
    if is_table:
        header = next(
            place for place in range(best, -1, -1) if not (place and pieces[place - 1].startswith(_ROW))
        )
        chosen = [header, *(place for place in chosen if place != header)]
    found, after = "", 0
    for place in sorted(chosen):
        if place > after:
            found += "…\n" if pieces[place - 1].endswith("\n") else "… "
        found += pieces[place]
        after = place + 1
    return found.rstrip() + (" …" if after < len(pieces) else "")


def _pieces(line: str, most_chars: int) -> list[str]:
    """Return a line in pieces, the last with its line feed; a row is one piece unless it is too long."""
    size = most_chars - 1 if line.startswith(_ROW) else most_chars // 3
    return re.findall(rf".{{1,{size}}}(?:\s|$)|.{{1,{size}}}", line.rstrip() + "\n")
