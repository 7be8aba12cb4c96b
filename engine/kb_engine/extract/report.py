"""What parent and child say to each other: a task as JSON on the command line, a report as MessagePack."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from kb_engine.extract.failures import ExtractionFailed, FailureCode
from kb_engine.extract.model import Extraction, Limits


class Task(msgspec.Struct, frozen=True, array_like=True):
    """What a child is to do with the file that is its standard input."""

    format: str
    limits: Limits
    parent: int
    """The process that waits for it; without that one there is no use in going on."""


class Failure(msgspec.Struct, frozen=True, tag="failure"):
    """Why there is no text."""

    code: FailureCode
    message: str

    @classmethod
    def of(cls, failed: ExtractionFailed) -> Failure:
        """The exception as it travels."""
        return cls(failed.code, failed.message)


Report: TypeAlias = Extraction | Failure
