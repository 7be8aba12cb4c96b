"""Faults as data: which requests they match, when they fire, and what they do.

name                    effect               done?  what the caller meets
----------------------  -------------------  -----  -----------------------------------------------------
latency_fixed           latency              yes    the answer, late by a fixed time
latency_uniform         latency              yes    the answer, late by an even spread of times
latency_lognormal       latency              yes    the answer, late: mostly a little, at times a lot
internal_error          status               no     500 `internal`
not_ready               status               no     503 `not_ready`
embedder_unavailable    status               no     503 `embedder_unavailable`
storage_full            status               no     507 `storage_full`
queue_full              status               no     429 `queue_full`
bad_gateway             http_status          no     502 with a proxy's HTML, no problem document
rate_limit              rate_limit           no     429, and again until `Retry-After` has elapsed
expired_key             expired_key          no     401, as after the key was changed
hang                    hang                 no     nothing, until somebody gives up
reset_before_headers    reset                no     the connection reset, no byte of an answer
reset_mid_body          reset_after          yes    the connection reset within the body
content_length_long     content_length       yes    a body shorter than announced
content_length_short    content_length       yes    a body longer than announced
malformed_chunk         malformed_chunk      yes    a chunked body whose framing breaks
drip                    drip                 yes    the body, a few bytes at a time
not_json                not_json             no     200 with HTML
empty_body              empty_body           no     200 without a body
stale_read              stale_read           yes    reads as of the moment when the fault was armed
lost_ack                lost_ack             yes    the connection reset after the request was carried out

"Done" says whether the operation is carried out. Of a mutation that is done and not acknowledged, and of
nothing else, a careless retry makes two.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from kb_contracts.api.errors import ERRORS
from kb_contracts.api.operations import BY_ID
from kb_simulator.harness.recorded_request import RecordedRequest

Seconds = Annotated[float, Meta(ge=0, le=1e9)]
Count = Annotated[int, Meta(ge=1, le=1_000_000_000)]


class Data(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The parent of what goes over the control plane."""


def _known(name: str, names: Mapping[str, object], what: str) -> None:
    if name in names:
        return
    near = get_close_matches(name, names, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else f" It is one of {', '.join(names)}."
    raise ValueError(f"there is no {what} {name!r}.{hint}")


# --- effects --------------------------------------------------------------------------------------


class Effect(Data, frozen=True, tag_field="kind"):
    """The parent of effects."""


class Fixed(Data, frozen=True, tag_field="kind", tag="fixed"):
    """Always `seconds`."""

    seconds: Seconds = 2.0


class Uniform(Data, frozen=True, tag_field="kind", tag="uniform"):
    """From `low` (inclusive) to `high` (exclusive) seconds, evenly."""

    low: Seconds = 0.0
    high: Seconds = 2.0

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(f"low ({self.low}) is over high ({self.high})")


class LogNormal(Data, frozen=True, tag_field="kind", tag="lognormal"):
    """Half under `median` seconds; `sigma` is the deviation of the logarithm; never over `most`."""

    median: Seconds = 0.2
    sigma: Annotated[float, Meta(ge=0, le=10)] = 1.0
    most: Seconds = 60.0


class Latency(Effect, frozen=True, tag="latency"):
    """The operation is carried out after a delay."""

    delay: Fixed | Uniform | LogNormal = Fixed()


class Status(Effect, frozen=True, tag="status"):
    """A problem document with a `code` of the contract, and its status."""

    code: str = "internal"
    retry_after: Seconds | None = None

    def __post_init__(self) -> None:
        _known(self.code, ERRORS, "error code")


class HttpStatus(Effect, frozen=True, tag="http_status"):
    """A `status` with a page of HTML, as a proxy answers."""

    status: Annotated[int, Meta(ge=200, le=599)] = 502


class RateLimit(Effect, frozen=True, tag="rate_limit"):
    """429 with `Retry-After`; every further match before `seconds` have passed is refused too."""

    seconds: Annotated[float, Meta(gt=0, le=1e9)] = 2.0
    code: str = "queue_full"

    def __post_init__(self) -> None:
        _known(self.code, {code: kind for code, kind in ERRORS.items() if kind.status == 429}, "code of 429")


class ExpiredKey(Effect, frozen=True, tag="expired_key"):
    """401 `unauthorized`, whatever key came."""


class Hang(Effect, frozen=True, tag="hang"):
    """No answer, until the caller hangs up or the namespace is reset."""


class Reset(Effect, frozen=True, tag="reset"):
    """The connection is reset before a byte of the answer, and before the operation is carried out."""


class ResetAfter(Effect, frozen=True, tag="reset_after"):
    """The connection is reset after the headers and `bytes` bytes of the body."""

    bytes: Annotated[int, Meta(ge=0, le=1 << 30)] = 16


class ContentLength(Effect, frozen=True, tag="content_length"):
    """`Content-Length` is wrong by `off`: over 0 announces too much, under 0 too little."""

    off: Annotated[int, Meta(ge=-(1 << 30), le=1 << 30)] = 64


class MalformedChunk(Effect, frozen=True, tag="malformed_chunk"):
    """`Transfer-Encoding: chunked`, whose second chunk has no valid size."""


class Drip(Effect, frozen=True, tag="drip"):
    """The body in pieces of `bytes`, with `seconds` before each."""

    bytes: Annotated[int, Meta(ge=1, le=1 << 30)] = 64
    seconds: Seconds = 0.1


class NotJson(Effect, frozen=True, tag="not_json"):
    """200 with HTML, as a login page in front of the engine answers."""


class EmptyBody(Effect, frozen=True, tag="empty_body"):
    """200 without a body."""


class StaleRead(Effect, frozen=True, tag="stale_read"):
    """Reads are answered from the state as it was when the fault was armed; mutations never match."""


class LostAck(Effect, frozen=True, tag="lost_ack"):
    """The operation is carried out, then the connection is reset without an answer."""


AnyEffect = (
    Latency
    | Status
    | HttpStatus
    | RateLimit
    | ExpiredKey
    | Hang
    | Reset
    | ResetAfter
    | ContentLength
    | MalformedChunk
    | Drip
    | NotJson
    | EmptyBody
    | StaleRead
    | LostAck
)

CATALOGUE: Mapping[str, AnyEffect] = {
    "latency_fixed": Latency(delay=Fixed()),
    "latency_uniform": Latency(delay=Uniform()),
    "latency_lognormal": Latency(delay=LogNormal()),
    "internal_error": Status(code="internal"),
    "not_ready": Status(code="not_ready", retry_after=1.0),
    "embedder_unavailable": Status(code="embedder_unavailable", retry_after=1.0),
    "storage_full": Status(code="storage_full"),
    "queue_full": Status(code="queue_full", retry_after=1.0),
    "bad_gateway": HttpStatus(status=502),
    "rate_limit": RateLimit(),
    "expired_key": ExpiredKey(),
    "hang": Hang(),
    "reset_before_headers": Reset(),
    "reset_mid_body": ResetAfter(),
    "content_length_long": ContentLength(off=64),
    "content_length_short": ContentLength(off=-64),
    "malformed_chunk": MalformedChunk(),
    "drip": Drip(),
    "not_json": NotJson(),
    "empty_body": EmptyBody(),
    "stale_read": StaleRead(),
    "lost_ack": LostAck(),
}
"""The faults by name, as in the table above. A fault may take a name and an effect of its own."""


# --- matching -------------------------------------------------------------------------------------


class Match(Data, frozen=True):
    """Which requests: all that is given must hold, and nothing given matches every request.

    `operation` is an id of the contract, `path` a prefix, `body` a text within the body, `tag` one that
    the request names, `header` a name or `name: value`.
    """

    operation: str | None = None
    method: str | None = None
    path: str | None = None
    body: str | None = None
    tag: str | None = None
    header: str | None = None

    def __post_init__(self) -> None:
        if self.operation is not None:
            _known(self.operation, BY_ID, "operation")

    def differs(self, request: RecordedRequest) -> list[str]:
        """The names of what does not hold; empty where the request matches."""
        return [name for name, holds in self._tests(request).items() if not holds]

    def _tests(self, request: RecordedRequest) -> dict[str, bool]:
        tests: dict[str, bool] = {}
        if self.operation is not None:
            tests["operation"] = request.operation == self.operation
        if self.method is not None:
            tests["method"] = request.method == self.method.upper()
        if self.path is not None:
            tests["path"] = request.path.startswith(self.path)
        if self.body is not None:
            tests["body"] = self.body.encode("utf-8", "surrogatepass") in request.body
        if self.tag is not None:
            tests["tag"] = self.tag in request.tags
        if self.header is not None:
            tests["header"] = _has_header(self.header, request.headers)
        return tests

    def __str__(self) -> str:
        operation = BY_ID[self.operation] if self.operation is not None else None
        method = self.method or (operation.method if operation else "any")
        path = self.path or (operation.path if operation else "request")
        rest = [f"{name} {value!r}" for name in ("body", "tag", "header") if (value := getattr(self, name))]
        return f"{method} {path}" + (f" with {', '.join(rest)}" if rest else "")


def _has_header(wanted: str, headers: Mapping[str, str]) -> bool:
    name, colon, value = wanted.partition(":")
    there = headers.get(name.strip())
    return there is not None and (not colon or there.strip() == value.strip())


class When(Data, frozen=True):
    """At which of the matching requests: all that is given must hold, and nothing given fires at each.

    `nth` counts from 1; `every` is each second, third...; `times` the most firings; `until` is in virtual
    seconds since the clock's start. `count` says what is counted: matches of the rule in the order of their
    arrival, or those of each request by itself, which does not depend on the order.
    """

    nth: Count | None = None
    every: Count | None = None
    times: Count | None = None
    probability: Annotated[float, Meta(ge=0, le=1)] | None = None
    until: Seconds | None = None
    count: Literal["rule", "request"] = "rule"

    def __str__(self) -> str:
        names = ("nth", "every", "times", "probability", "until")
        given = [f"{name} {value:g}" for name in names if (value := getattr(self, name)) is not None]
        by_itself = ", each request by itself" if self.count == "request" else ""
        return (", ".join(given) or "always") + by_itself


class Fault(Data, frozen=True):
    """A fault to arm. Without an `effect` it is the catalogue's of that `name`; without an `id` it gets one.

    A fault that never fires fails the test that armed it, unless it is `optional`.
    """

    name: str
    effect: AnyEffect | None = None
    match: Match = Match()
    when: When = When()
    id: Annotated[str, Meta(min_length=1, max_length=100)] | None = None
    optional: bool = False

    def __post_init__(self) -> None:
        if self.effect is None:
            _known(self.name, CATALOGUE, "fault")

    def __str__(self) -> str:
        return f"{self.id or self.name} on {self.match}"
