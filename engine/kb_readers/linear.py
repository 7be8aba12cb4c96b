"""Text of Office documents in linear format: superscripts and fractions keep their meaning without layout.

A superscript after a letter or digit and an exponent follow a `^`, as in `10^6`; a fraction has a `/`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

TERMS = {"num": "", "den": "/", "sup": "^"}
"""The elements of an equation set above or below the line, and the prefix of each."""

_SIMPLE = re.compile(r"[-−]?[\w.,]{1,20}")  # needs no parentheses


@dataclass
class LinearText:
    """The text of one paragraph, built run by run."""

    parts: list[str] = field(default_factory=list)
    raised: bool = False  # true if the open run is a superscript
    _was_raised: bool = False  # of the previous text
    _terms: list[int] = field(default_factory=list)  # index of the prefix of each open term, in `parts`

    @property
    def text(self) -> str:
        return "".join(self.parts)

    def begin_run(self) -> None:
        self.raised = False

    def write(self, text: str) -> None:
        """Add text of the open run, or a piece of it."""
        if self.raised and not self._was_raised and self._is_in_word and not text[:1].isspace():
            self.parts.append("^")
        self._was_raised = self.raised
        self.parts.append(text)

    def begin_term(self, name: str) -> None:
        """Begin an element of `TERMS`."""
        if name == "num" and self._is_in_word:  # 2½ is not 21/2
            self.parts.append(" ")
        self._terms.append(len(self.parts))
        self.parts.append("")

    def end_term(self, name: str) -> None:
        """End an element of `TERMS`; ignored if it was not begun."""
        if not self._terms:
            return
        begin = self._terms.pop()
        parts = len(self.parts) - begin - 1
        if parts == 1 and _SIMPLE.fullmatch(self.parts[-1]):
            self.parts[begin] = TERMS[name]
        elif parts:
            self.parts[begin] = f"{TERMS[name]}("
            self.parts.append(")")

    @property
    def _is_in_word(self) -> bool:
        return bool(self.parts) and self.parts[-1][-1:].isalnum()
