"""The requests and responses of a whole run, counted by operation and by link."""

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

    def count_response(self, operation_id: str, status: int) -> None:
        """Count one response of an operation."""
        self.statuses[operation_id, status] += 1

    def count_link(self, source: str, target: str, status: int) -> None:
        """Count a link that was followed to a success."""
        if status in _SUCCESS:
            self.links[source, target] += 1

    def operation_counts(self) -> list[OperationCount]:
        """One count an operation of the contract, in its order."""
        asked: Counter[str] = Counter()
        succeeded: Counter[str] = Counter()
        for (operation_id, status), count in self.statuses.items():
            asked[operation_id] += count
            succeeded[operation_id] += count if status in _SUCCESS else 0
        return [OperationCount(each.id, asked[each.id], succeeded[each.id]) for each in OPERATIONS]

    def link_counts(self) -> list[LinkCount]:
        """One count a link of the contract, in its order."""
        return [
            LinkCount(operation.id, link.operation, self.links[operation.id, link.operation])
            for operation in OPERATIONS
            for link in operation.links
        ]
