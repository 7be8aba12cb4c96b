"""The port of `kb sync`: a source lists its files, and opens each.

    Source ─┬─ Folder                     folder.py
            └─ Remote ─┬─ Repository      repository.py
                       ├─ Site            site.py
                       └─ Bucket, SharedFolder  storage.py

A listing that failed or was cut short is not complete, and nothing is removed because of it. The content
hash of a remote file is known without reading it if its version mark (blob id, ETag, time of change) is that
of the last run. These marks are a cache: without it every file is fetched again, and nothing else changes.
"""

from __future__ import annotations

import hashlib
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import NamedTuple, Protocol

import msgspec

from kb_cli.add import SOURCE_PATH_CHARS, Found
from kb_cli.exclusion import HEAD_BYTES, HOLDS_CREDENTIALS, begins_as_key, is_named_as_credentials
from kb_cli.output import CliError
from kb_cli.properties import NO_DETAILS, Details
from kb_cli.web import MOST_BYTES, Fetched
from kb_contracts.api import formats
from kb_contracts.api import models as m

_UNFIT = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
MOST_ENTRIES = 1_000_000
"""Maximum number of entries in a listing."""


class Unavailable(Exception):
    """A listing or a file cannot be read; the message has the reason."""


class LeftOut(Exception):
    """A file does not enter a base; the message has the reason."""


class Unchanged(Exception):
    """The base has the content of the file."""


@dataclass(slots=True)
class Listing:
    """The files of a source.

    `digests` are the SHA-256 of the contents of `files`, by their source paths; None if a file must be
    fetched first. `unreadable` has the reasons by source path; for an unreadable folder this is its only
    entry. `left_out` has the reasons of excluded files. `skipped` files are of a format that kb does not
    read. An absent file has been deleted only if the listing `is_complete`.
    """

    files: dict[str, Found] = field(default_factory=dict)
    digests: dict[str, str | None] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    skipped: int = 0
    is_complete: bool = False

    def may_hold(self, source: str) -> bool:
        """True if the source may be a file that could not be read, or one that holds credentials."""
        if self.left_out.get(source) == HOLDS_CREDENTIALS:
            return True
        ends = [*(found.start() for found in re.finditer("/", source)), len(source)]
        return any(source[:end] in self.unreadable for end in ends)


class Source(Protocol):
    """Files that a collection is synchronised with. `prefix` is the common prefix of their source paths."""

    @property
    def name(self) -> str:
        """Its name for people."""

    @property
    def prefix(self) -> str: ...

    def listed(self) -> Listing:
        """Return its present files. Raises `CliError` if it cannot be listed at all."""

    def owns(self, document: m.Document, source: str) -> bool:
        """True if a source path of a document came from here, and is removed with its file."""

    def opened(self, file: Found, held: Collection[str]) -> AbstractContextManager[Found]:
        """Return a listed file, to be sent in the context. `held` are the SHA-256 of its documents.

        Raises:
            Unchanged: `held` is its content.
            LeftOut, Unavailable: it cannot be sent.
        """


class Entry(NamedTuple):
    """An entry of a remote listing. An empty `mark` says nothing of its version."""

    source: str
    size: int = 0
    mark: str = ""


class Known(msgspec.Struct, frozen=True, array_like=True):
    """A file as it was last fetched; `conditions` are headers of a conditional request."""

    source: str
    mark: str
    sha256: str
    conditions: dict[str, str] = {}


class Remote(ABC):
    """A source outside of this machine's folders, with a cache in the data folder `home`.

    Sources of one name that differ in their `variant` have caches of their own.
    """

    are_files = True
    """The source paths have names of files after `prefix`, and the rules of folders apply to these."""

    def __init__(self, name: str, prefix: str, home: Path, variant: str = "") -> None:
        self.name, self.prefix = name, prefix
        folder = home / "sync"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise CliError(f"{folder}: {error.strerror}") from error
        self._cache = folder / hashlib.sha256(os.fsencode(name + variant)).hexdigest()[:32]
        self._log = self._cache.with_suffix(".jsonl")
        self._known = _known(self._log)
        self._marks: dict[str, str] = {}

    @abstractmethod
    def entries(self) -> Iterator[Entry]:
        """Yield all entries; the end says that there are no more. Raises `Unavailable`."""

    @abstractmethod
    def fetched(self, source: str, folder: Path, conditions: Mapping[str, str]) -> Fetched:
        """Return the file of the last listing, saved in `folder` under a name with its extension.

        Raises:
            Unchanged: the conditions hold.
            LeftOut, Unavailable: there is no file.
        """

    def listed(self) -> Listing:
        """Return its present files."""
        listing = Listing()
        self._marks.clear()
        try:
            for count, entry in enumerate(self.entries(), 1):
                if count > MOST_ENTRIES:
                    raise Unavailable(f"it has more than {MOST_ENTRIES:,} entries")
                self._take(entry, listing)
            listing.is_complete = self.is_whole
        except Unavailable as error:
            listing.unreadable[self.name] = f"the listing is incomplete, so nothing is removed: {error}"
        return listing

    @property
    def is_whole(self) -> bool:
        """True if the last listing had all files there are, and not only the newest."""
        return True

    def details_of(self, source: str) -> Details:  # noqa: ARG002
        """Return the details of the document of a file."""
        return NO_DETAILS

    def owns(self, document: m.Document, source: str) -> bool:  # noqa: ARG002 - a prefix belongs to one source
        """True if a source path of a document came from here."""
        return True

    @contextmanager
    def opened(self, file: Found, held: Collection[str]) -> Iterator[Found]:
        """Return a listed file, fetched for the time of the context."""
        source, mark = file.source, self._marks[file.source]
        known = self._known.get(source)
        with TemporaryDirectory(prefix="kb-sync-") as folder:
            conditions = known.conditions if known and list(held) == [known.sha256] else {}
            try:
                fetched = self.fetched(source, Path(folder), conditions)
            except Unchanged:
                if known:
                    self._note(Known(source, mark, known.sha256, known.conditions))
                raise
            except OSError as error:
                raise Unavailable(error.strerror or str(error)) from error
            with fetched.path.open("rb") as content:
                if self.are_files and begins_as_key(content.read(HEAD_BYTES)):
                    raise LeftOut(HOLDS_CREDENTIALS)
                content.seek(0)
                digest = hashlib.file_digest(content, "sha256").hexdigest()
            self._note(Known(source, mark, digest, dict(fetched.conditions)))
            if list(held) == [digest]:
                raise Unchanged
            size, details = fetched.path.stat().st_size, self.details_of(source)
            yield replace(file, path=fetched.path, size=size, details=details)

    def _take(self, entry: Entry, listing: Listing) -> None:
        source = entry.source
        if why := _no_source(source) or (self.are_files and no_file(source[len(self.prefix) :])):
            listing.unreadable[source] = why
            return
        name = PurePosixPath(source).name
        if self.are_files:
            if any(part.startswith(".") for part in source[len(self.prefix) :].split("/")):
                return
            if is_named_as_credentials(name):
                listing.left_out[source] = HOLDS_CREDENTIALS
                return
            try:
                formats.format_of(name)
            except formats.UnsupportedFormat:
                listing.skipped += 1
                return
            if entry.size > MOST_BYTES:
                listing.unreadable[source] = f"it has more than {MOST_BYTES >> 20} MiB"
                return
        self._marks[source] = entry.mark
        known = self._known.get(source)
        listing.files[source] = Found(Path(name), entry.size, named=False, source=source)
        listing.digests[source] = known.sha256 if known and entry.mark and known.mark == entry.mark else None

    def _note(self, known: Known) -> None:
        if known == self._known.get(known.source):
            return
        self._known[known.source] = known
        with self._log.open("ab") as log:  # one line each, so that an interrupted run keeps its marks
            log.write(msgspec.json.encode(known) + b"\n")


def _known(log: Path) -> dict[str, Known]:
    """Return the marks of earlier runs; the last line of a file counts, and damaged lines do not."""
    found: dict[str, Known] = {}
    lines = log.read_bytes().splitlines() if log.exists() else []
    for line in lines:
        with suppress(msgspec.DecodeError):
            known = msgspec.json.decode(line, type=Known)
            found[known.source] = known
    if len(lines) > 2 * len(found):
        new = log.with_suffix(".new")
        with suppress(FileNotFoundError):  # another run has replaced it
            new.write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in found.values()))
            new.replace(log)
    return found


def _no_source(source: str) -> str | None:
    """Return the reason if a source path cannot be one of a document."""
    if len(source) > SOURCE_PATH_CHARS:
        return f"its path has more than {SOURCE_PATH_CHARS} characters"
    if _UNFIT.search(source):
        return "its path has control characters, or is not UTF-8"
    return None


def no_file(key: str) -> str | None:
    """Return the reason if a key of a remote source is no relative path of a file."""
    if any(part in ("", ".", "..") for part in key.split("/")):
        return "its path has an empty part, or one that is . or .."
    return None
