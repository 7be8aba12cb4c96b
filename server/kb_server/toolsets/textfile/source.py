"""The port to whatever holds the one text: a file today, any backend that can say it whole tomorrow."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol


class SourceError(Exception):
    """The text cannot be had; the message is for the calling agent and tells no path."""


class NotConfigured(SourceError):
    """Nobody said where the text is: a state that an operator chose, not a fault."""


@dataclass(frozen=True, slots=True)
class Text:
    """A text, whole and unmodified. `size` is in bytes, as stored; `modified` is aware, in UTC."""

    content: str
    size: int
    modified: datetime


class DataSource(Protocol):
    """Holds one text."""

    @property
    def name(self) -> str:
        """What the operator knows it by, for the log: a path, a URL."""

    def read(self) -> Text:
        """The text. Blocks; must come to an end whatever it meets.

        Raises:
            SourceError: the text cannot be had.
        """


class HeldText:
    """What a source gave at the start, for as long as the process lives: the text, or why there is none.

    A source is asked once. What changes in it afterwards shows after a restart, and a failure stays a
    failure: an agent that has been told `unavailable` is never told otherwise by chance.
    """

    def __init__(self, outcome: Text | SourceError | None = None) -> None:
        """`outcome` None: not read yet."""
        self._outcome = outcome

    @property
    def is_read(self) -> bool:
        """Whether the source has been asked."""
        return self._outcome is not None

    def keep(self, outcome: Text | SourceError) -> None:
        """Keep `outcome`, unless one is kept already."""
        self._outcome = self._outcome or outcome

    @property
    def text(self) -> Text | None:
        """The text, where there is one."""
        return self._outcome if isinstance(self._outcome, Text) else None

    @property
    def reason(self) -> str:
        """Why there is no text; empty where there is one."""
        if self._outcome is None:
            return "The text has not been read yet. Try again in a moment."
        return str(self._outcome) if isinstance(self._outcome, SourceError) else ""
