"""What was asked of the engine and how it answered, counted over a whole run."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import msgspec

from kb_contracts.api.operations import OPERATIONS

_SUCCESS = range(200, 300)


class LinkCount(msgspec.Struct, frozen=True):
    """How often a link led from an answer to a success."""

    source: str
    target: str
    taken: int


class OperationCount(msgspec.Struct, frozen=True):
    """How often an operation was asked, and how often it answered with a success."""

    operation: str
    asked: int
    succeeded: int


@dataclass
class Tally:
    """Counts by operation and status, and by link."""

    statuses: Counter[tuple[str, int]] = field(default_factory=Counter)
    links: Counter[tuple[str, str]] = field(default_factory=Counter)

    def answered(self, operation_id: str, status: int) -> None:
        """An operation was answered with a status."""
        self.statuses[operation_id, status] += 1

    def followed(self, source: str, target: str, status: int) -> None:
        """A link was followed to an answer."""
        if status in _SUCCESS:
            self.links[source, target] += 1

    def operation_counts(self) -> list[OperationCount]:
        """One count an operation of the contract, in its order."""
        return [self._operation(operation.id) for operation in OPERATIONS]

    def link_counts(self) -> list[LinkCount]:
        """One count a link of the contract, in its order."""
        return [
            LinkCount(operation.id, link.operation, self.links[operation.id, link.operation])
            for operation in OPERATIONS
            for link in operation.links
        ]

    def _operation(self, operation_id: str) -> OperationCount:
        counts = {status: count for (asked, status), count in self.statuses.items() if asked == operation_id}
        succeeded = sum(count for status, count in counts.items() if status in _SUCCESS)
        return OperationCount(operation_id, sum(counts.values()), succeeded)
