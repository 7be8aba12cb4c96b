"""Text from a knowledge base is anybody's text: made harmless before it reaches a terminal.

A control character can move the cursor, rename the window or type for the user; a bidirectional override
can show another order than the one stored. Each is shown as its escape instead.
"""

from __future__ import annotations

import re

_CONTROL = "\x7f-\x9f\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069\ud800-\udfff"
_IN_TEXT = re.compile(f"[\x00-\x08\x0b-\x1f{_CONTROL}]")
_IN_LINE = re.compile(f"[\x00-\x1f\u2028\u2029{_CONTROL}]")
_IN_JSON = re.compile(f"[{_CONTROL}]")


def text(value: str) -> str:
    """`value` without control characters but newline and tab; CRLF counts as a newline."""
    return _IN_TEXT.sub(_escape, value.replace("\r\n", "\n"))


def line(value: str) -> str:
    """`value` on one line: runs of white space become one space, other control characters are escaped."""
    return _IN_LINE.sub(_escape, " ".join(value.split()))


def json(encoded: str) -> str:
    r"""A JSON text whose strings hold only printable characters; JSON itself escapes those under U+0020."""
    return _IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", encoded)


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
