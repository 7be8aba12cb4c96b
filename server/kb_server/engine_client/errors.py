"""What can go wrong with the engine, as one tree. Nothing else leaves an engine client.

EngineFault                code                  sent again  what happened
 |
 +-- EngineUnreachable     engine_unreachable    yes         refused, reset, no such host, TLS, open circuit
 +-- EngineTimeout         engine_timeout        no          connected, and then silence
 +-- EngineBusy            engine_busy           yes         429 or 503, with `retry_after` where it said so
 +-- RateLimited           rate_limited          no          RAGler's 429: what this server may ask is used up
 +-- EngineUnauthorized    engine_unauthorized   no          401 or 403: it refuses this server's KB_API_KEY
 +-- EngineTooOld          engine_too_old        no          under MIN_ENGINE_VERSION, or keeps nobody apart
 +-- EngineFailed          engine_failed         no ***      another 5xx
 +-- EngineBadAnswer       engine_bad_answer     no *        not JSON, not the contract, a redirect, too large
 +-- Refused               a contract's code     no **       a problem document: the request was understood

*  but where the answer broke off in the middle, or its framing was damaged
** but `in_progress`: the same idempotency key is at work already
*** but a gateway's 502 or 504: a proxy that does not reach an engine which restarts

"Sent again" is `transient`. The client sends again only what is safe: reads, and mutations under one
idempotency key, so that a fault that reaches a caller has been tried already.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar


class EngineFault(Exception):
    """A call of the engine failed; the message is one sentence about what happened.

    `retry_after` is in seconds, None where nothing is known. `transient` tells whether the same call may
    succeed when it is sent again at once. `aftermath` is a sentence about what it left half done, where it
    was one call of several.
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
    """The backend counts this server's calls and takes no more for now.

    Not sent again: it counts in whole minutes, and what asks meanwhile keeps others of this server waiting.
    """

    code = "rate_limited"


class EngineUnauthorized(EngineFault):
    """The engine refuses the server's key."""

    code = "engine_unauthorized"


class EngineTooOld(EngineFault):
    """The engine's version is under the least that this server works with, or it does not enforce reach."""

    code = "engine_too_old"


class EngineFailed(EngineFault):
    """The engine answered with a 5xx. `gateway`: it was a proxy in between, which did not get through."""

    def __init__(self, detail: str, *, retry_after: float | None = None, gateway: bool = False) -> None:
        super().__init__(detail, retry_after=retry_after)
        self.transient = gateway


class EngineBadAnswer(EngineFault):
    """The engine answered what the contract does not allow. `broke_off`: it did not arrive whole."""

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
