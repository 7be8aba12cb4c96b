"""The access scope of a caller as SQL. Repositories get their conditions from `Read.within`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kb_contracts.access.reach import Reach

Condition = tuple[str, Sequence[Any]]  # SQL with a `?` for each of the values

_LAST = 0x10FFFF
_BEFORE_SURROGATES, _AFTER_SURROGATES = 0xD7FF, 0xE000


def reached(reach: Reach, column: str) -> Condition:
    """Condition on a column: it has a tag within the access scope."""
    tags = sorted(reach.tags)
    either = [f"{column} IN ({','.join('?' * len(tags))})"] if tags else []
    values: list[Any] = tags
    for prefix in sorted(reach.prefixes):
        sql, bounds = starts_with(column, prefix)
        either.append(f"({sql})")
        values += bounds
    return f"({' OR '.join(either) or 'false'})", values


def of_document(reach: Reach, column: str) -> Condition:
    """Condition on a column: it has the id of a document within the access scope."""
    where, values = reached(reach, "tag")
    return f"{column} IN (SELECT document_id FROM document_tags WHERE {where})", values  # noqa: S608


def starts_with(column: str, prefix: str) -> tuple[str, list[str]]:
    """Return a prefix condition as a range, which uses the index and needs no escaping."""
    if not prefix:
        return "true", []
    beyond = prefix.rstrip(chr(_LAST))
    if not beyond:
        return f"{column} >= ?", [prefix]
    last = ord(beyond[-1])
    following = _AFTER_SURROGATES if last == _BEFORE_SURROGATES else last + 1
    return f"{column} >= ? AND {column} < ?", [prefix, beyond[:-1] + chr(following)]
