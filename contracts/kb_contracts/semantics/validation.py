"""Reads msgspec's validation errors, which have no attributes beside their text."""

from __future__ import annotations

import re
from dataclasses import dataclass

import msgspec

_PLACE = re.compile(r" - at `\$(?P<place>.*)`$", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<name>.*)`", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>.*)`", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The contents of a validation error.

    `place` is the path of the value below `$`, such as `.filters.format[0]`, and empty at the top. `missing`
    and `unknown` are the name of a member of the object there. `text` is the message without the place.
    """

    place: str
    text: str
    missing: str | None = None
    unknown: str | None = None


def mismatch_of(error: msgspec.ValidationError) -> Mismatch:
    text = str(error)
    found = _PLACE.search(text)
    place = found["place"] if found else ""
    text = _PLACE.sub("", text)
    missing, unknown = _MISSING.fullmatch(text), _UNKNOWN.fullmatch(text)
    return Mismatch(place, text, missing["name"] if missing else None, unknown["name"] if unknown else None)
