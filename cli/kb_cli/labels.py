"""Collections and tags as the command line takes them, by the server's own rules.

`--tags collection:memory` is the convention written out and means the same as `--collection memory`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from kb_cli.exits import CliError, Exit
from kb_contracts.api.ragler import PREFIX
from kb_server import collection_tags
from kb_server.tool import ToolError


@dataclass(frozen=True, slots=True)
class Labels:
    """The collection asked for, None where none was, and the other tags."""

    collection: str | None
    tags: list[str]

    def submitted(self) -> list[str]:
        """The tags of something new, its collection's first.

        Raises:
            CliError: a name or a tag is none.
        """
        with _refusing():
            return collection_tags.tags_for_submission(self.collection, self.tags)

    def searched(self) -> list[str]:
        """The tags that a search asks for.

        Raises:
            CliError: a name or a tag is none.
        """
        with _refusing():
            return collection_tags.tags_for_search(self.collection, self.tags)


def labels(options: argparse.Namespace) -> Labels:
    """What `--collection` and `--tags` say together.

    Raises:
        CliError: they name more than one collection.
    """
    given = [tag for listed in options.tags or [] for tag in _listed(listed)]
    named = [tag.removeprefix(PREFIX) for tag in given if tag.startswith(PREFIX)]
    if options.collection is not None:
        named.insert(0, options.collection)
    if len(set(named)) > 1:
        raise CliError(Exit.USAGE, f"one collection at a time, not {' and '.join(dict.fromkeys(named))}")
    others = [tag for tag in given if not tag.startswith(PREFIX)]
    return Labels(named[0] if named else None, others)


def collection_and_tags(tags: Sequence[str]) -> tuple[str, str]:
    """A document's collection and its other tags, for people."""
    placed = collection_tags.split_tags(tags)
    return placed.collection or "", ", ".join(placed.tags)


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


@contextmanager
def _refusing() -> Iterator[None]:
    try:
        yield
    except ToolError as error:
        raise CliError(Exit.USAGE, error.message) from error
