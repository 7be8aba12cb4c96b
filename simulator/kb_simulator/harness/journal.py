"""The journal: every request with its answer, expectations on it, and an export that is equal between runs.

The fingerprint of a request is a digest over method, path, query, `If-Match` and body. It ignores white space
and the order of members in a JSON body, and everything that differs between two runs of one client: the
boundary of a multipart body, the idempotency key, the credential, the connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import lru_cache
from hashlib import blake2b
from itertools import islice
from typing import Annotated, Any
from urllib.parse import parse_qsl

import msgspec
from msgspec import Meta

from kb_contracts.api.operations import BY_ID
from kb_contracts.api.ragler import PREFIX
from kb_http.requests import holds_too_many_values

MOST_ENTRIES = 20_000
"""Maximum number of entries; older ones are dropped and counted."""

_BODY_BYTES = 4096  # bytes of a body that an entry keeps, and the longest body whose digest is cached
_STRANGE_CODES = frozenset({"route_not_found", "method_not_allowed", "unknown_parameter"})

Number = Annotated[int, Meta(ge=0)]

_decode = msgspec.json.Decoder().decode


class Data(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The base class of messages of the control plane."""


def check_known(name: str, names: Mapping[str, object], what: str) -> None:
    if name in names:
        return
    near = get_close_matches(name, names, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else f" It is one of {', '.join(names)}."
    raise ValueError(f"there is no {what} {name!r}.{hint}")


class RecordedRequest(msgspec.Struct, frozen=True):
    """A request. `path` excludes the query, `operation` is None if no route matches, `body` may be shortened.

    `tags` are all tags in the body, the query and the path.
    """

    method: str
    path: str
    query: str
    operation: str | None
    headers: Mapping[str, str]
    body: bytes
    tags: tuple[str, ...]
    fingerprint: str

    @property
    def target(self) -> str:
        """Return path and query."""
        return f"{self.path}?{self.query}" if self.query else self.path

    def __str__(self) -> str:
        with_tags = f" with tags {', '.join(self.tags)}" if self.tags else ""
        return f"{self.method} {self.target}{with_tags}"


def record_request(
    method: str, path: str, query: str, operation: str | None, headers: Mapping[str, str], body: bytes
) -> RecordedRequest:
    """Return the record of a request; `body` is canonicalised if it is JSON."""
    if_match = headers.get("If-Match", "")
    digest = _digest if len(body) <= _BODY_BYTES else _digest.__wrapped__
    fingerprint, tags = digest(method, path, query, if_match, body)
    return RecordedRequest(method, path, query, operation, headers, body, tags, fingerprint)


@lru_cache(maxsize=4096)
def _digest(method: str, path: str, query: str, if_match: str, body: bytes) -> tuple[str, tuple[str, ...]]:
    """The fingerprint, and the tags in the body, the path and the query."""
    pairs = sorted(parse_qsl(query, keep_blank_values=True))
    content, canonical = None, body  # the raw bytes if they are not JSON
    if body and not holds_too_many_values(body):
        try:
            content = _decode(body)
            canonical = msgspec.json.encode(content, order="sorted")
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            content = None
    digest = blake2b(digest_size=8)
    parts = [part.encode("utf-8", "surrogateescape") for part in (method, path, repr(pairs), if_match)]
    for part in (*parts, canonical):
        digest.update(b"%d:%b" % (len(part), part))
    tags: list[Any] = []
    if isinstance(content, dict):
        name, filters = content.get("collectionName"), content.get("filters")
        nested = filters.get("tags") if isinstance(filters, dict) else None
        for member in (content.get("tags"), content.get("tags_any"), nested):
            tags += member if isinstance(member, list) else []
        tags += [PREFIX + name] if isinstance(name, str) else []
    _, _, in_path = path.partition("/tags/")
    tags += [in_path] if in_path else []
    tags += [value for name, value in pairs if name == "tag"]
    return digest.hexdigest(), tuple(dict.fromkeys(tag for tag in tags if isinstance(tag, str)))


class Match(Data, frozen=True):
    """Conditions on a request. All given conditions must hold; without any, every request matches.

    `operation` is an id of the contract, `path` a prefix, `body` a substring of the body, `tag` one of the
    tags in the request, `header` a name or `name: value`.
    """

    operation: str | None = None
    method: str | None = None
    path: str | None = None
    body: str | None = None
    tag: str | None = None
    header: str | None = None

    def __post_init__(self) -> None:
        if self.operation is not None:
            check_known(self.operation, BY_ID, "operation")

    def differs(self, request: RecordedRequest) -> list[str]:
        """The names of the conditions that do not hold; empty if the request matches."""
        differs: list[str] = []
        if self.operation not in (None, request.operation):
            differs.append("operation")
        if self.method is not None and request.method != self.method.upper():
            differs.append("method")
        if self.path is not None and not request.path.startswith(self.path):
            differs.append("path")
        if self.body is not None and self.body.encode("utf-8", "surrogatepass") not in request.body:
            differs.append("body")
        if self.tag is not None and self.tag not in request.tags:
            differs.append("tag")
        if self.header is not None:
            name, colon, value = self.header.partition(":")
            there = request.headers.get(name.strip())
            if there is None or (colon and there.strip() != value.strip()):
                differs.append("header")
        return differs

    def __str__(self) -> str:
        operation = BY_ID[self.operation] if self.operation is not None else None
        method = self.method or (operation.method if operation else "any")
        path = self.path or (operation.path if operation else "request")
        rest = [f"{name} {value!r}" for name in ("body", "tag", "header") if (value := getattr(self, name))]
        return f"{method} {path}" + (f" with {', '.join(rest)}" if rest else "")


class Entry(msgspec.Struct):
    """A request, the `occurrence`-th with its fingerprint, `at` virtual seconds after the clock's start.

    `status` is None until the answer, and stays None if no status was sent; `code` is the code of a problem
    document; `done` is true if the operation ran; `delay` is in virtual seconds.
    """

    number: int
    at: float
    request: RecordedRequest
    occurrence: int
    status: int | None = None
    code: str | None = None
    faults: tuple[str, ...] = ()
    delay: float = 0.0
    done: bool = False

    @property
    def identity(self) -> str:
        """Identifies the request within a run; the same in every run."""
        return f"{self.request.fingerprint}:{self.occurrence}"


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """An entry as the control plane shows it. Only `number` and `at` depend on the order of arrival."""

    number: int
    at: float
    fingerprint: str
    occurrence: int
    operation: str | None
    method: str
    target: str
    tags: tuple[str, ...]
    status: int | None
    code: str | None
    faults: tuple[str, ...]
    delay: float
    done: bool


@dataclass(slots=True)
class Journal:
    """The requests to one namespace and their answers, in order of arrival."""

    _entries: deque[Entry] = field(default_factory=lambda: deque(maxlen=MOST_ENTRIES))
    _occurrences: dict[str, int] = field(default_factory=dict)
    _count: int = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries)

    @property
    def dropped(self) -> int:
        """Number of entries that were discarded because they were too old."""
        return self._count - len(self._entries)

    def begin(self, request: RecordedRequest, at: float) -> Entry:
        """Record a request. The caller writes the answer into the entry."""
        self._count += 1
        occurrence = self._occurrences[request.fingerprint] = (
            self._occurrences.get(request.fingerprint, 0) + 1
        )
        kept = request
        if len(request.body) > _BODY_BYTES:
            kept = msgspec.structs.replace(request, body=request.body[:_BODY_BYTES])
        entry = Entry(self._count, at, kept, occurrence)
        self._entries.append(entry)
        return entry

    def latest(self, count: int) -> list[Record]:
        """The newest entries in order of arrival."""
        start = max(0, len(self._entries) - count)
        return [_record_of(entry) for entry in islice(self._entries, start, None)]

    def canonical(self) -> bytes:
        """The entries as sorted JSON lines, without members that depend on arrival.

        They are sorted by fingerprint and occurrence. Two runs with one seed give the same bytes for the same
        requests in any order, unless an armed fault counts arrivals (`nth`, `every` or `times` of a rule) or
        depends on time (`until`, windows).
        """
        ordered = sorted(self._entries, key=lambda entry: (entry.request.fingerprint, entry.occurrence))
        lines = []
        for entry in ordered:
            members = msgspec.structs.asdict(_record_of(entry))
            del members["number"], members["at"]
            lines.append(msgspec.json.encode(members) + b"\n")
        return b"".join(lines)


def _record_of(entry: Entry) -> Record:
    request = entry.request
    members = {**msgspec.structs.asdict(request), **msgspec.structs.asdict(entry), "target": request.target}
    return Record(**{name: members[name] for name in Record.__struct_fields__})


class Expectation(Data, frozen=True):
    """Expected number of matching requests: `exactly`, or within bounds; by default at least one."""

    match: Match = Match()
    exactly: Number | None = None
    at_least: Number | None = None
    at_most: Number | None = None


class Verification(Data, frozen=True):
    """Expectations that must all hold, and requests that must arrive in this order.

    Further requests may arrive between the members of `in_order`.
    """

    expectations: tuple[Expectation, ...] = ()
    in_order: tuple[Match, ...] = ()


class Verdict(Data, frozen=True):
    """The failures in words, the faults that never fired, and the `strangers`.

    Strangers are requests that match no operation.
    """

    failures: tuple[str, ...] = ()
    unfired: tuple[str, ...] = ()
    strangers: tuple[str, ...] = ()


def verify(journal: Journal, wanted: Verification, unfired: tuple[str, ...] = ()) -> Verdict:
    """Compare the journal with expectations; `unfired` are the faults that should have fired and did not."""
    failures = [text for each in wanted.expectations if (text := _failure(journal, each))]
    if text := _disorder(journal, wanted.in_order):
        failures.append(text)
    if journal.dropped and (wanted.expectations or wanted.in_order):
        failures.append(f"the oldest {journal.dropped} entries were dropped, so that nothing is certain")
    # Requests that match no operation: an unknown path, method or field.
    strangers = tuple(f"{entry.request} ({entry.code})" for entry in journal if entry.code in _STRANGE_CODES)
    return Verdict(failures=tuple(failures), unfired=unfired, strangers=strangers)


def _failure(journal: Journal, wanted: Expectation) -> str | None:
    found = [entry for entry in journal if not wanted.match.differs(entry.request)]
    low, high = wanted.at_least or 0, wanted.at_most
    if wanted.exactly is not None:
        low = high = wanted.exactly
    elif wanted.at_least is None and wanted.at_most is None:
        low = 1
    if len(found) >= low and (high is None or len(found) <= high):
        return None
    summary = f"{wanted.match} was expected {_times(low, high)} and came {_times(len(found), len(found))}"
    if len(found) < low:
        return f"{summary}; {_nearest(journal, wanted.match)}"
    return f"{summary}: {', '.join(f'#{entry.number}' for entry in found[:10])}"


def _times(low: int, high: int | None) -> str:
    if low == high:
        return {0: "never", 1: "once"}.get(low, f"{low} times")
    if high is None:
        return f"at least {_times(low, low)}"
    return f"at most {_times(high, high)}" if low == 0 else f"{low} to {high} times"


def _nearest(journal: Journal, match: Match) -> str:
    """Describe the request that is most similar to the expected one, and the differences."""
    misses = [(differs, entry) for entry in journal if (differs := match.differs(entry.request))]
    if not misses:
        return "the journal holds no other request"
    differs, entry = min(misses, key=lambda miss: (len(miss[0]), -miss[1].number))
    return f"the nearest was #{entry.number} {entry.request}, another {' and '.join(differs)}"


def _disorder(journal: Journal, wanted: Sequence[Match]) -> str | None:
    """Describe the first match that does not come after its predecessors, or return None."""
    entries = iter(journal)
    for place, match in enumerate(wanted):
        if any(not match.differs(entry.request) for entry in entries):
            continue
        earlier = f" after {wanted[place - 1]}" if place else ""
        numbers = [f"#{entry.number}" for entry in journal if not match.differs(entry.request)]
        elsewhere = f"it came as {', '.join(numbers[:10])}" if numbers else _nearest(journal, match)
        return f"{match} did not come{earlier}; {elsewhere}"
    return None
