"""Lines and files of the audit log, and the check that they are unchanged."""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

EXPIRED = "log expired"
"""Action of a line that names the last line of a file that was removed for its age."""
REFUSED = "refused"
"""In queries: every outcome except `ok`."""
START = bytes(32)
"""The hash before the first line."""
_NAME = re.compile(r"^(?P<chain>[a-z]+-\d{8}T\d{6}Z-\d+-[0-9a-f]{6})\.(?P<number>\d{6})\.jsonl$")
_LINE = re.compile(rb'^(?P<body>\{.*),"hash":"(?P<hash>[0-9a-f]{64})"\}$', re.DOTALL)


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line without its hash. Times are RFC 3339 in UTC.

    `action` is an operation of the engine, a tool of the server, or a login; `outcome` is `ok` or the code of
    the error. `who` is the name of the key, or the subject of the token; `user` is the user on whose behalf
    the request is made; `address` is the origin of the request. Server and engine record the same
    `correlation_id` for one request.
    """

    number: int
    at: str
    part: str
    action: str
    outcome: str = "ok"
    who: str = ""
    user: str = ""
    address: str = ""
    documents: Sequence[str] = ()
    found: int | None = None
    collection: str = ""
    correlation_id: str = ""
    detail: Mapping[str, str | int] = msgspec.field(default_factory=dict)
    lost: int = 0
    """Number of lines before this one that could not be written."""


class Head(msgspec.Struct, frozen=True):
    """The last line of a chain."""

    chain: str
    number: int
    hash: str


@dataclass(frozen=True, slots=True)
class Break:
    """A line at which a chain is broken, and the fault."""

    chain: str
    number: int
    what: str


def file_name(chain: str, number: int) -> str:
    """Return the name of a chain's file; files are numbered from 1."""
    return f"{chain}.{number:06d}.jsonl"


def chains(folder: Path) -> dict[str, list[Path]]:
    """Return the files of each chain, in their order; chains are in the order of their start."""
    found: dict[str, list[Path]] = defaultdict(list)
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if name := _NAME.match(path.name):
            found[name["chain"]].append(path)
    return dict(sorted(found.items(), key=lambda item: item[0].split("-")[1:]))


def entries(folder: Path) -> Iterator[Entry]:
    """Yield all readable lines, chain by chain."""
    for files in chains(folder).values():
        for path in files:
            for line in _lines(path):
                if (entry := _entry(line)) is not None:  # `check` reports unreadable lines
                    yield entry


def heads(folder: Path) -> list[Head]:
    """Return the last line of each chain, to be kept where the folder's owner cannot change it."""
    found = (head_of(chain, files[-1]) for chain, files in chains(folder).items())
    return [head for head in found if head is not None]


def check(folder: Path, known: Iterable[Head] = ()) -> list[Break]:
    """Return the breaks of all chains, also against heads that were `known`; empty if intact."""
    expired: dict[str, Head] = {}
    for entry in entries(folder):
        if entry.action == EXPIRED:
            gone = msgspec.convert(entry.detail, Head)
            if gone.chain not in expired or expired[gone.chain].number < gone.number:
                expired[gone.chain] = gone
    wanted: dict[str, list[Head]] = defaultdict(list)
    for head in known:
        wanted[head.chain].append(head)
    breaks: list[Break] = []
    found = chains(folder)
    for chain, files in found.items():
        breaks += _check_chain(chain, files, expired.get(chain), wanted[chain])
    for chain in wanted.keys() - found.keys():
        last = max(head.number for head in wanted[chain])
        if chain not in expired or expired[chain].number < last:
            breaks.append(Break(chain, 1, f"all {last} lines are missing"))
    return breaks


def _check_chain(
    chain: str, files: Sequence[Path], expired: Head | None, known: Sequence[Head]
) -> Iterator[Break]:
    before, number = START, 0
    if expired is not None:
        before, number = bytes.fromhex(expired.hash), expired.number
    hashes = {head.number: head.hash for head in known}
    for path in files:
        for line in _lines(path):
            parts = _LINE.match(line)
            entry = _entry(line)
            if parts is None or entry is None:
                yield Break(chain, number + 1, "this is not a line of the log")
                continue
            if entry.number != number + 1:
                yield Break(chain, number + 1, f"the line before {entry.number} is {number}")
            stated = parts["hash"].decode()
            if hashlib.sha256(before + parts["body"] + b"}").hexdigest() != stated:
                yield Break(chain, entry.number, "it was changed, or replaced by another line")
            if hashes.pop(entry.number, stated) != stated:
                yield Break(chain, entry.number, "it is not the line that was the head before")
            before, number = bytes.fromhex(stated), entry.number
    if missing := [head for head in hashes if head > number]:
        yield Break(chain, number + 1, f"the end is missing: there were {max(missing)} lines")


def _entry(line: bytes) -> Entry | None:
    try:
        return msgspec.json.decode(line, type=Entry)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def head_of(chain: str, path: Path) -> Head | None:
    """Return the last line of a file of a chain, if it is valid."""
    last = next(iter(deque(_lines(path), maxlen=1)), b"")
    parts, entry = _LINE.match(last), _entry(last)
    return Head(chain, entry.number, parts["hash"].decode()) if parts and entry else None


def _lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        for line in file:
            yield line.rstrip(b"\n")


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """A query for lines, with times as in `Entry`, inclusive; an omitted criterion matches all."""

    who: str | None = None
    document: str | None = None
    action: str | None = None
    outcome: str | None = None
    correlation_id: str | None = None
    since: str | None = None
    until: str | None = None

    def has(self, entry: Entry) -> bool:
        """True if the line matches."""
        return (
            self.who in (None, entry.who)
            and (self.document is None or self.document in entry.documents)
            and self.action in (None, entry.action)
            and (self.outcome in (None, entry.outcome) or (self.outcome == REFUSED and entry.outcome != "ok"))
            and self.correlation_id in (None, entry.correlation_id)
            and (self.since is None or entry.at >= self.since)
            and (self.until is None or entry.at <= self.until)
        )
