"""The results of a run as data: one outcome for each test, and the successes of each operation and link."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import groupby

import msgspec

from kb_contracts.api.operations import OPERATIONS

_SUCCESS = range(200, 300)


class LinkCount(msgspec.Struct, frozen=True):
    """Number of times that a link led from a response to a success."""

    source: str
    target: str
    taken: int


class OperationCount(msgspec.Struct, frozen=True):
    """Number of requests of an operation, and of its successful responses."""

    operation: str
    requests: int
    succeeded: int


@dataclass
class Tally:
    """Counts by operation and status, and by link."""

    statuses: Counter[tuple[str, int]] = field(default_factory=Counter)
    links: Counter[tuple[str, str]] = field(default_factory=Counter)

    def count_response(self, operation_id: str, status: int) -> None:
        self.statuses[operation_id, status] += 1

    def count_link(self, source: str, target: str, status: int) -> None:
        """Count a link that was followed to a success."""
        if status in _SUCCESS:
            self.links[source, target] += 1

    def operation_counts(self) -> list[OperationCount]:
        """Return one count for each operation of the contract, in its order."""
        requests: Counter[str] = Counter()
        succeeded: Counter[str] = Counter()
        for (operation_id, status), count in self.statuses.items():
            requests[operation_id] += count
            succeeded[operation_id] += count if status in _SUCCESS else 0
        return [OperationCount(each.id, requests[each.id], succeeded[each.id]) for each in OPERATIONS]

    def link_counts(self) -> list[LinkCount]:
        """Return one count for each link of the contract, in its order."""
        return [
            LinkCount(operation.id, link.operation, self.links[operation.id, link.operation])
            for operation in OPERATIONS
            for link in operation.links
        ]


class Status(StrEnum):
    """The outcome of a test or a promise."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One test. `why` is one reason for people; `details` is pytest's report of a failure."""

    id: str
    family: str
    name: str
    promise: str
    requirements: list[str]
    status: Status
    why: str
    details: str
    seconds: float


class Promise(msgspec.Struct, frozen=True, kw_only=True):
    """A promise: all tests of one name, with its worst outcome and the reason for it."""

    family: str
    sentence: str
    promise: str
    requirements: list[str]
    status: Status
    why: str
    tests: int
    failed: list[str]


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """A run; `interrupted`: not all promises were verified."""

    url: str
    seed: int
    outcomes: list[Outcome]
    operations: list[OperationCount]
    links: list[LinkCount]
    interrupted: bool = False

    @property
    def passed(self) -> bool:
        """True if a test ran, no test failed, and the run was not interrupted."""
        return bool(self.outcomes) and not self.of(Status.FAILED) and not self.interrupted

    def of(self, status: Status) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.status is status]

    def promises(self) -> list[Promise]:
        """Return the promises, in the order in which they were tested."""
        promises = []
        for _, group in groupby(self.outcomes, key=lambda outcome: (outcome.family, outcome.name)):
            outcomes = list(group)
            failed = [outcome for outcome in outcomes if outcome.status is Status.FAILED]
            skipped = [outcome for outcome in outcomes if outcome.status is Status.SKIPPED]
            first, worst = outcomes[0], (failed or skipped or outcomes)[0]
            promises.append(
                Promise(
                    family=first.family,
                    sentence=first.name.removeprefix("test_").replace("_", " "),
                    promise=first.promise,
                    requirements=sorted({id_ for outcome in outcomes for id_ in outcome.requirements}),
                    status=worst.status,
                    why=worst.why,
                    tests=len(outcomes),
                    failed=[outcome.id for outcome in failed],
                )
            )
        return promises

    def counts(self) -> str:
        """Return one line: the numbers of operations that succeeded, and of links that were followed."""
        succeeded = sum(count.succeeded > 0 for count in self.operations)
        taken = sum(count.taken > 0 for count in self.links)
        requests = sum(count.requests for count in self.operations)
        return (
            f"{requests} requests; {succeeded} of {len(self.operations)} operations answered with a success; "
            f"{taken} of {len(self.links)} links taken; seed {self.seed}"
        )
