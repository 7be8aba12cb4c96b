"""What came of a run, as data: one outcome a test, and how often each operation and link succeeded."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from itertools import groupby

import msgspec

from kb_verify.tally import LinkCount, OperationCount


class Status(StrEnum):
    """What came of a test or a promise."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One test. `why` is one reason for people; `details` are pytest's, where it failed."""

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
    """A run."""

    url: str
    seed: int
    outcomes: list[Outcome]
    operations: list[OperationCount]
    links: list[LinkCount]

    @property
    def passed(self) -> bool:
        """Whether any test ran, and none failed."""
        return bool(self.outcomes) and not self.of(Status.FAILED)

    def of(self, status: Status) -> list[Outcome]:
        """The outcomes of one kind."""
        return [outcome for outcome in self.outcomes if outcome.status is status]

    def promises(self) -> list[Promise]:
        """The promises, in the order in which they were tested."""
        groups = groupby(self.outcomes, key=lambda outcome: (outcome.family, outcome.name))
        return [_promise(list(outcomes)) for _, outcomes in groups]

    def counts(self) -> str:
        """One line: how many operations were answered with a success, and how many links were taken."""
        succeeded = sum(count.succeeded > 0 for count in self.operations)
        taken = sum(count.taken > 0 for count in self.links)
        requests = sum(count.asked for count in self.operations)
        return (
            f"{requests} requests; {succeeded} of {len(self.operations)} operations answered with a success; "
            f"{taken} of {len(self.links)} links taken; seed {self.seed}"
        )


def _promise(outcomes: Sequence[Outcome]) -> Promise:
    first = outcomes[0]
    failed = [outcome for outcome in outcomes if outcome.status is Status.FAILED]
    skipped = [outcome for outcome in outcomes if outcome.status is Status.SKIPPED]
    worst = (failed or skipped or [first])[0]
    return Promise(
        family=first.family,
        sentence=first.name.removeprefix("test_").replace("_", " "),
        promise=first.promise,
        requirements=sorted({id_ for outcome in outcomes for id_ in outcome.requirements}),
        status=worst.status,
        why=worst.why,
        tests=len(outcomes),
        failed=[outcome.id for outcome in failed],
    )
