"""Requests made by schemathesis from the contract's document, and what its checks found in the responses.

Each phase runs under the target's seed and within its bounds. No document can express these rules:

- `tags` and `metadata` of a form are JSON texts: what they hold is generated, not any text.
- Each request of one of RAGler's operations comes from a new user, so that no limit hides a response.
- Of a search's two dates the start does not come after the end.
- To delete a job is to cancel it: it can still be read.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, time
from enum import StrEnum
from time import monotonic
from typing import Any

import schemathesis
from hypothesis import strategies as st
from schemathesis.engine import events, from_schema
from schemathesis.engine.recorder import ScenarioRecorder

from kb_contracts.api.operations import BY_ID, CREATE_JOB, AnyOperation, ApiSurface
from kb_contracts.openapi import document
from kb_verify.client import fresh_user
from kb_verify.tally import Tally
from kb_verify.target import Target

_JSON_FORMAT = "kb-json-{name}"
_REQUEST_SECONDS = 60
_MAX_PRINTED = 5


class Phase(StrEnum):
    """What requests are made of."""

    EXAMPLES = "examples"
    COVERAGE = "coverage"
    FUZZING = "fuzzing"
    STATEFUL = "stateful"


@dataclass
class Findings:
    """What came of one phase. `failures` are kept once an operation and check, with how to repeat them."""

    seconds: float = 0.0
    requests: int = 0
    stopped: bool = False
    failures: dict[tuple[str, str], str] = field(default_factory=dict)

    def fail(self, label: str, check: str, text: str) -> None:
        """Note a failure, the first of its kind."""
        self.failures.setdefault((label, check), text)

    def __str__(self) -> str:
        first = list(self.failures.values())[:_MAX_PRINTED]
        more = len(self.failures) - len(first)
        return "\n\n".join([*first, *([f"and {more} more"] if more else [])])


def run(target: Target, phase: Phase, tally: Tally, operations: Sequence[AnyOperation]) -> Findings:
    """Send one phase's requests of these operations."""
    findings, started = Findings(), monotonic()
    stream = from_schema(_schema(target, phase, operations)).execute()
    for event in stream:
        _take(event, findings, tally)
        if monotonic() - started > target.seconds and not findings.stopped:
            findings.stopped = True
            stream.stop()
    findings.seconds = monotonic() - started
    return findings


def _schema(target: Target, phase: Phase, operations: Sequence[AnyOperation]) -> Any:
    phases: dict[str, Any] = {each.value: {"enabled": each is phase} for each in Phase}
    # Links that are guessed from names lead to places where this contract has none.
    phases[Phase.STATEFUL.value]["inference"] = {"algorithms": []}
    config = schemathesis.Config.from_dict(
        {
            "base-url": target.url,
            "seed": target.seed,
            "headers": target.all_headers,
            "continue-on-failure": True,
            "request-timeout": _REQUEST_SECONDS,
            "generation": {"max-examples": target.examples, "database": "none"},
            "phases": phases,
            "operations": [
                {"include-operation-id": "getJob", "checks": {"use_after_free": {"enabled": False}}}
            ],
        }
    )
    return schemathesis.openapi.from_dict(_document(operations, with_key=bool(target.api_key)), config=config)


def _document(operations: Sequence[AnyOperation], *, with_key: bool) -> dict[str, Any]:
    """The contract's document, as it is for this engine: one without a key asks for none."""
    contract = document(operations)
    if not with_key:
        contract["security"] = []
        del contract["components"]["securitySchemes"]
    create_job = contract["paths"][CREATE_JOB.path][CREATE_JOB.method.lower()]
    fields = create_job["requestBody"]["content"]["multipart/form-data"]["schema"]["properties"]
    for name, part in fields.items():
        if "contentSchema" in part:
            part["format"] = _JSON_FORMAT.format(name=name)
    # The files that are sent are texts, of which OCR is not forced: no schema can say that.
    fields["force_ocr"]["enum"] = ["false"]
    return contract


_TEXTS = st.text(st.characters(min_codepoint=48, max_codepoint=122), min_size=1, max_size=8)
_SCALARS = st.none() | st.booleans() | st.integers(-(2**31), 2**31) | _TEXTS
schemathesis.openapi.format(_JSON_FORMAT.format(name="tags"), st.lists(_TEXTS, max_size=3).map(json.dumps))
schemathesis.openapi.format(
    _JSON_FORMAT.format(name="metadata"), st.dictionaries(_TEXTS, _SCALARS, max_size=3).map(json.dumps)
)


@schemathesis.hook
def before_call(_context: Any, case: Any, _kwargs: dict[str, Any]) -> None:
    """Another user, where the request is one to be taken: what is refused is not counted."""
    operation = BY_ID[case.operation.definition.raw["operationId"]]
    if (
        operation.surface is ApiSurface.RAGLER
        and case.meta is not None
        and case.meta.generation.mode.is_positive
    ):
        case.headers.update(fresh_user())


@schemathesis.hook
def filter_body(_context: Any, body: Any) -> bool:
    """Whether the end of a search's dates does not come before their start."""
    filters = body.get("filters") if isinstance(body, dict) else None
    dates = [filters.get(name) for name in ("date_from", "date_to")] if isinstance(filters, dict) else []
    try:
        start, end = (_moment(date, hour) for date, hour in zip(dates, (time.min, time.max), strict=True))
    except (TypeError, ValueError):
        return True
    return start <= end


def _moment(text: Any, hour: time) -> datetime:
    """An aware moment. Raises TypeError or ValueError where there is none."""
    moment = datetime.fromisoformat(text.upper() if isinstance(text, str) else text)
    return moment if moment.tzinfo else datetime.combine(moment, hour, UTC)


def _take(event: Any, findings: Findings, tally: Tally) -> None:
    match event:
        case events.ScenarioFinished() | events.FuzzScenarioFinished():
            _count(event.recorder, findings, tally)
            _judge(event.recorder, findings)
        case events.NonFatalError():
            findings.fail(event.label, type(event.value).__name__, f"{event.label}: {event.value}")
        case events.FatalError():
            raise event.exception
        case _:
            pass


def _count(recorder: ScenarioRecorder, findings: Findings, tally: Tally) -> None:
    for case_id, interaction in recorder.interactions.items():
        node = recorder.cases[case_id]
        status = interaction.response.status_code if interaction.response else 0
        operation = node.value.operation.definition.raw["operationId"]
        tally.count_response(operation, status)
        findings.requests += 1
        if node.transition is not None and node.is_transition_applied and node.parent_id is not None:
            source = recorder.cases[node.parent_id].value.operation.definition.raw["operationId"]
            tally.count_link(source, operation, status)


def _judge(recorder: ScenarioRecorder, findings: Findings) -> None:
    for case_id, checks in recorder.checks.items():
        label = recorder.cases[case_id].value.operation.label
        for check in checks:
            if check.failure_info is not None:
                info = check.failure_info
                text = f"{check.name}: {label}\n{info.failure}\n{info.code_sample}"
                findings.fail(label, check.name, text)
