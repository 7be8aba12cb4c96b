"""The policies that say when and how jobs end, as data and as the text of a flag."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from kb_contracts.api.errors import ERRORS

STEPS = ("Extracting text", "Splitting into chunks", "Generating embeddings", "Storing")
"""What a job goes through, in order."""

QUEUED, COMPLETED = "queued", "completed"
"""The steps before and after."""


class AtOnce(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="at_once"):
    """The job has ended by the time anybody looks."""


class AfterPolls(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="after_polls"
):
    """The job ends at the `polls`-th `GET /jobs/{id}`; until then each poll shows more progress."""

    polls: Annotated[int, Meta(ge=1, le=1_000_000)] = 3


class AfterTime(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="after_time"):
    """The job ends when `seconds` of virtual time have passed since it was accepted."""

    seconds: Annotated[float, Meta(gt=0, le=1e9)] = 10.0


class Stuck(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="stuck"):
    """The job stays at `step` for ever, unless it is cancelled: `queued`, or one of the steps of its work."""

    step: str = STEPS[2]

    def __post_init__(self) -> None:
        _check_step(self.step, (QUEUED, *STEPS))


class FailAt(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="fail_at"):
    """The job fails at `step` with `code`, one of the contract's errors."""

    step: str = STEPS[2]
    code: str = "extraction_failed"
    message: str = "This job was told to fail."

    def __post_init__(self) -> None:
        _check_step(self.step, STEPS)
        if self.code not in ERRORS:
            raise ValueError(f"there is no error code {self.code!r}; it is one of {', '.join(ERRORS)}")


def _check_step(step: str, steps: Sequence[str]) -> None:
    if step not in steps:
        raise ValueError(f"there is no step {step!r}; it is one of {', '.join(steps)}")


Policy = AtOnce | AfterPolls | AfterTime | Stuck | FailAt
"""How jobs end. A job keeps the policy under which it was accepted."""

POLICY_FORMS = "at-once, polls:N, seconds:S, stuck[:STEP] or fail[:STEP]"
"""What `policy_of` reads."""

_BY_WORD: Mapping[str, tuple[type[Policy], str]] = {
    "polls": (AfterPolls, "polls"),
    "seconds": (AfterTime, "seconds"),
    "stuck": (Stuck, "step"),
    "fail": (FailAt, "step"),
}


def policy_of(text: str) -> Policy:
    """The policy that `text` names in one of `POLICY_FORMS`; without its value it has the policy's default.

    Raises:
        ValueError: it names none, or its value does not fit.
    """
    if text == "at-once":
        return AtOnce()
    word, colon, value = text.partition(":")
    if word not in _BY_WORD:
        raise ValueError(f"takes {POLICY_FORMS}")
    kind, member = _BY_WORD[word]
    try:
        return msgspec.convert({member: value} if colon else {}, kind, strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(f"takes {POLICY_FORMS}; of {value!r}: {error}") from error
