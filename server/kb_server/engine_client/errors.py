"""The faults of the engine, as one tree. An engine client raises no other faults.

    EngineFault               code                 sent again  reason
    |
    +-- EngineUnreachable     engine_unreachable   yes         refused, reset, no such host, TLS, open breaker
    +-- EngineTimeout         engine_timeout       no          connected, and then silence
    +-- EngineBusy            engine_busy          yes         429 or 503, with `retry_after` if it was given
    +-- RateLimited           rate_limited         no          RAGler's 429: the server's limit is reached
    +-- EngineUnauthorized    engine_unauthorized  no          401 or 403: it refuses this server's KB_API_KEY
    +-- EngineTooOld          engine_too_old       no          under MIN_ENGINE_VERSION, or without scopes
    +-- EngineFailed          engine_failed        no ***      another 5xx
    +-- EngineBadAnswer       engine_bad_answer    no *        not JSON, not the contract, redirect, too large
    +-- Refused               a contract's code    no **       a problem document: the request was understood

    *   unless the answer broke off in the middle, or its framing was damaged
    **  except `in_progress`: a request with the same idempotency key is still running
    *** except a gateway's 502 or 504: a proxy that does not reach a restarting engine

"Sent again" is `transient`. The client repeats only safe requests: reads, and mutations under one idempotency
key. So a transient fault that reaches a caller has been retried already.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar


class EngineFault(Exception):
    """A call of the engine failed; the message is one sentence about the failure.

    `retry_after` is in seconds, None if unknown. `transient` is true if the same call may succeed when it is
    repeated at once. `aftermath` is a sentence about the incomplete state, if the call was one of several.
    """

    code: ClassVar[str] = "engine_failed"
    transient: bool = False
    aftermath: str = ""

    def __init__(self, detail: str, *, retry_after: float | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.retry_after = retry_after


class EngineUnreachable(EngineFault):
    """No connection, or one that broke before it answered. `url` names the engine, without credentials."""

    code = "engine_unreachable"
    transient = True

    def __init__(self, detail: str, *, url: str, retry_after: float | None = None) -> None:
        super().__init__(detail, retry_after=retry_after)
        self.url = url


class EngineTimeout(EngineFault):
    """The engine took the call and then said nothing for too long."""

    code = "engine_timeout"


class EngineBusy(EngineFault):
    """The engine asks to come back later."""

    code = "engine_busy"
    transient = True


class RateLimited(EngineFault):
    """The backend's rate limit for this server is reached.

    Not sent again: it counts in whole minutes, and further requests would delay other calls of this server.
    """

    code = "rate_limited"


class EngineUnauthorized(EngineFault):
    """The engine refuses the server's key."""

    code = "engine_unauthorized"


class EngineTooOld(EngineFault):
    """The engine is older than the minimum version, or does not enforce access scopes."""

    code = "engine_too_old"


class EngineFailed(EngineFault):
    """The engine answered with a 5xx. `gateway`: the status came from a proxy that did not reach it."""

    def __init__(self, detail: str, *, retry_after: float | None = None, gateway: bool = False) -> None:
        super().__init__(detail, retry_after=retry_after)
        self.transient = gateway


class EngineBadAnswer(EngineFault):
    """The engine's answer violates the contract. `broke_off`: it did not arrive whole."""

    code = "engine_bad_answer"

    def __init__(self, detail: str, *, broke_off: bool = False) -> None:
        super().__init__(detail)
        self.transient = broke_off


class Refused(EngineFault):
    """The engine understood the call and refused it, with a problem document.

    `reason` is a code of the contract, or `engine_refused` where a foreign engine sent another one;
    `members` are the further members of the document, such as `parameter` and `current_version`.
    """

    code = "engine_refused"

    def __init__(
        self,
        reason: str,
        detail: str,
        *,
        retry_after: float | None = None,
        members: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(detail, retry_after=retry_after)
        self.reason = reason
        self.members = dict(members or {})
        self.transient = reason == "in_progress"
