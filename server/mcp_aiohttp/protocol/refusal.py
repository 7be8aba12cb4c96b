"""Why a request gets no further: one exception a refusal, one JSON-RPC error in its answer.

```
Refusal
├── 401 unauthorized            no bearer token, or not the right one
├── 403 origin_not_allowed      a browser page of a stranger
├── 421 host_not_allowed        a name that is not this server's (DNS rebinding)
├── 405 method_not_allowed      only POST carries messages, or a WebSocket
├── 426 upgrade_required        a WebSocket of another version
├── 415 unsupported_media_type  the body is not announced as plain JSON
├── 413 message_too_large       over the limit on one message
├── 408 body_timeout            the body stopped coming
├── 503 server_stopping         the server stops, and the body has not arrived whole
├── 400 bad_handshake           a WebSocket cannot be opened so
├── 503 too_many_connections    as many are in use as may be, in all or from one address
├── 503 too_many_websockets     as many are open as may be, in all or from one address
└── 400 ...                     JSON-RPC's own codes: not JSON, not a request, versions that disagree
```

Codes -32009 to -32019 are ours, within the range the protocol leaves to implementations. TOO_MANY_CALLS is
answered only where one connection carries many calls at once; the connection goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

UNAUTHORIZED = -32010
HOST_NOT_ALLOWED = -32011
ORIGIN_NOT_ALLOWED = -32012
MESSAGE_TOO_LARGE = -32013
UNSUPPORTED_MEDIA_TYPE = -32014
METHOD_NOT_ALLOWED = -32015
BODY_TIMEOUT = -32016
TOO_MANY_CALLS = -32017
BAD_HANDSHAKE = -32018
SERVER_STOPPING = -32019
TOO_MANY_CONNECTIONS = -32009


class Refusal(Exception):
    """The request is refused with an HTTP status and a JSON-RPC error."""

    def __init__(
        self,
        status: int,
        code: int,
        error_type: str,
        message: str,
        *,
        headers: Mapping[str, str] | None = None,
        close: bool = False,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        """`close` ends the connection after the answer; `details` stand in the error's data."""
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.headers = dict(headers or {})
        self.close = close
        self.data = {"error_type": error_type, **({"details": dict(details)} if details else {})}
