"""Which operations an engine serves: those of the engine API, and RAGler's or none of these."""

from __future__ import annotations

from dataclasses import dataclass

import httpx
import msgspec

from kb_contracts.api.errors import Problem
from kb_contracts.api.operations import OPERATIONS, AnyOperation, ApiSurface, of_surface
from kb_verify.client import fresh_user

UNKNOWN = frozenset({"route_not_found", "method_not_allowed"})
_UUID = "00000000-0000-4000-8000-000000000000"


@dataclass(frozen=True, slots=True)
class Served:
    """What RAGler's clients get; `missing` are the ids of those of their operations that they do not."""

    missing: frozenset[str] = frozenset()

    @property
    def ragler(self) -> bool:
        """Whether any of RAGler's operations is served."""
        return len(self.missing) < len(of_surface(ApiSurface.RAGLER))

    @property
    def operations(self) -> tuple[AnyOperation, ...]:
        """What is verified. Where only some of RAGler's are served, all are: the missing ones are broken."""
        return OPERATIONS if self.ragler else of_surface(ApiSurface.ENGINE)

    @property
    def why(self) -> str:
        """Why RAGler's operations cannot be verified."""
        return f"the engine does not serve RAGler's operations: {', '.join(sorted(self.missing))}"


def find_served(http: httpx.Client) -> Served:
    """Send each of RAGler's operations a request that changes nothing."""
    operations = of_surface(ApiSurface.RAGLER)
    return Served(frozenset(operation.id for operation in operations if not _is_served(http, operation)))


def _is_served(http: httpx.Client, operation: AnyOperation) -> bool:
    # A body without its members: whoever serves the operation refuses it for that.
    body: dict[str, object] | None = None if operation.body is None else {}
    path = operation.path.format(collection_id=_UUID)
    response = http.request(operation.method, path, json=body, headers=fresh_user())
    try:
        return msgspec.json.decode(response.content, type=Problem).code not in UNKNOWN
    except msgspec.DecodeError:
        return True
