"""What a request asks for, as far as faults and the journal look at it, and its fingerprint.

The fingerprint is a digest over method, path, query, `If-Match` and body. White space and the order of
members in a JSON body do not count, nor does anything that differs between two runs of one client: the
boundary of a multipart body, the idempotency key, the credential, the connection.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from hashlib import blake2b
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from kb_contracts.api.ragler import PREFIX
from kb_contracts.http.mount import holds_too_many_values

_CACHED_BODY_BYTES = 4096
_TAG_MEMBERS = ("tags", "tags_any")

_decode = msgspec.json.Decoder().decode


class RecordedRequest(msgspec.Struct, frozen=True):
    """A request. `path` is without the query, `operation` None where no route fits; `body` may be shortened.

    `tags` are all that it names, in the body, the query or the path.
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
        """Path and query."""
        return f"{self.path}?{self.query}" if self.query else self.path

    def __str__(self) -> str:
        with_tags = f" with tags {', '.join(self.tags)}" if self.tags else ""
        return f"{self.method} {self.target}{with_tags}"


def record_request(
    method: str, path: str, query: str, operation: str | None, headers: Mapping[str, str], body: bytes
) -> RecordedRequest:
    """A request as it came; `body` is JSON, or anything else taken as it is."""
    if_match = headers.get("If-Match", "")
    digest = _digest if len(body) <= _CACHED_BODY_BYTES else _digest.__wrapped__
    fingerprint, tags = digest(method, path, query, if_match, body)
    return RecordedRequest(method, path, query, operation, headers, body, tags, fingerprint)


@lru_cache(maxsize=4096)
def _digest(method: str, path: str, query: str, if_match: str, body: bytes) -> tuple[str, tuple[str, ...]]:
    pairs = sorted(parse_qsl(query, keep_blank_values=True))
    content, canonical = _read(body)
    parts = (method, path, repr(pairs), if_match)
    digest = blake2b(digest_size=8)
    for part in (*(part.encode("utf-8", "surrogateescape") for part in parts), canonical):
        digest.update(b"%d:%b" % (len(part), part))
    return digest.hexdigest(), tuple(dict.fromkeys((*_tags_in(content), *_tags_of(path, pairs))))


def _read(body: bytes) -> tuple[Any, bytes]:
    """The JSON value and its canonical bytes; None and the bytes as they are, where they are not JSON."""
    if not body or holds_too_many_values(body):
        return None, body
    try:
        content = _decode(body)
        return content, msgspec.json.encode(content, order="sorted")
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None, body


def _tags_in(content: Any) -> list[str]:
    if not isinstance(content, dict):
        return []
    name, filters = content.get("collectionName"), content.get("filters")
    members = [content.get(member) for member in _TAG_MEMBERS]
    members += [filters.get("tags")] if isinstance(filters, dict) else []
    members += [[PREFIX + name]] if isinstance(name, str) else []
    return [tag for member in members if isinstance(member, list) for tag in member if isinstance(tag, str)]


def _tags_of(path: str, pairs: list[tuple[str, str]]) -> list[str]:
    _, _, in_path = path.partition("/tags/")
    in_query = [value for name, value in pairs if name == "tag"]
    return [*([in_path] if in_path else []), *in_query]
