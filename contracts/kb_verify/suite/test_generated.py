"""Promises of the contract's document, tested with requests that are generated from it.

Every response has a status, a content type, headers and a body that the document describes; invalid requests
are refused; valid ones are accepted; requests without the key are refused; removed resources are gone.

The requests are made by schemathesis, each phase under the target's seed and within its bounds. No document
can express these rules:

- `tags` and `metadata` of a form are JSON texts: their content is generated, not any text.
- Each request of one of RAGler's operations comes from a new user, so that no rate limit hides a response.
- The start of a search's dates is not after the end.
- The weights of a ranking add up to 1.
- Deleting a job cancels it: it can still be read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, time
from enum import StrEnum
from time import monotonic
from typing import Any

import pytest
import schemathesis
from hypothesis import strategies as st
from schemathesis.engine import events, from_schema
from schemathesis.engine.recorder import ScenarioRecorder

from kb_contracts.access.reach import ACCESS
from kb_contracts.api.operations import BY_ID, CREATE_JOB, ApiSurface
from kb_contracts.openapi import document
from kb_verify.client import Client, Served, fresh_user
from kb_verify.results import Tally
from kb_verify.run import Target

pytestmark = pytest.mark.generated

_JSON_FORMAT = "kb-json-{name}"
_REQUEST_SECONDS = 60
_MAX_PRINTED = 5


class Phase(StrEnum):
    """The phases of generated requests."""

    EXAMPLES = "examples"
    COVERAGE = "coverage"
    FUZZING = "fuzzing"
    STATEFUL = "stateful"


@pytest.fixture
def contract(target: Target, served: Served, kb: Client, silent: Mapping[str, str]) -> dict[str, Any]:
    """The contract's document, adapted to this engine: without a key it requires none.

    It fails for an engine that did not respond to earlier requests, since each further request would take the
    time-out.
    """
    assert not silent, f"nothing was generated: {'; '.join(silent.values())}"
    contract = document(served.operations)
    if not target.api_key:
        contract["security"] = []
        del contract["components"]["securitySchemes"]
    create_job = contract["paths"][CREATE_JOB.path][CREATE_JOB.method.lower()]
    fields = create_job["requestBody"]["content"]["multipart/form-data"]["schema"]["properties"]
    for name, part in fields.items():
        if "contentSchema" in part:
            part["format"] = _JSON_FORMAT.format(name=name)
    # Most accesses would hide the documents of the requests: only a value that takes nothing away is sent.
    # For engines that do not announce that they enforce it, it is an unknown header.
    if (header := contract["components"]["parameters"].get(ACCESS)) is not None:
        del header["content"]
        header["schema"] = {"type": "string", "enum": ["{}"]} if kb.enforces_access else {"type": "string"}
    # The generated files are texts, for which OCR cannot be forced; no schema can express that.
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
    """Set a new user, and weights that add up to 1, in requests that are to be accepted.

    Refused requests are not counted by rate limits.
    """
    if case.meta is None or not case.meta.generation.mode.is_positive:
        return
    if BY_ID[case.operation.definition.raw["operationId"]].surface is ApiSurface.RAGLER:
        case.headers.update(fresh_user())
    if isinstance(case.body, dict) and isinstance(ranking := case.body.get("ranking"), dict):
        weights = ranking.get("ranking_weights", {})
        if total := sum(weights.values()):
            ranking["ranking_weights"] = {name: weight / total for name, weight in weights.items()}


@schemathesis.hook
def filter_body(_context: Any, body: Any) -> bool:
    """True if the end of a search's dates is not before their start."""
    filters = body.get("filters") if isinstance(body, dict) else None
    dates: list[Any] = (
        [filters.get(name) for name in ("date_from", "date_to")] if isinstance(filters, dict) else []
    )
    moments = []
    try:
        for text, hour in zip(dates, (time.min, time.max), strict=True):
            moment = datetime.fromisoformat(text.upper() if isinstance(text, str) else text)
            moments.append(moment if moment.tzinfo else datetime.combine(moment, hour, UTC))
    except (TypeError, ValueError):
        return True
    return moments[0] <= moments[1]


def send(phase: Phase, target: Target, tally: Tally, contract: dict[str, Any]) -> None:
    """Send the requests of one phase, and fail with the failed checks, one for each operation and check."""
    phases: dict[str, Any] = {each.value: {"enabled": each is phase} for each in Phase}
    # Links inferred from names would lead to places that this contract does not link to.
    phases[Phase.STATEFUL.value]["inference"] = {"algorithms": []}
    config = schemathesis.Config.from_dict(
        {
            "base-url": target.urls[-1],
            "seed": target.seed,
            "headers": target.all_headers,
            "continue-on-failure": True,
            # Requests may take long to generate: the machine is not verified.
            "suppress-health-check": ["too_slow"],
            "request-timeout": min(_REQUEST_SECONDS, target.timeout),
            "generation": {"max-examples": target.examples, "database": "none"},
            "phases": phases,
            "operations": [
                {"include-operation-id": "getJob", "checks": {"use_after_free": {"enabled": False}}}
            ],
        }
    )
    stream = from_schema(schemathesis.openapi.from_dict(contract, config=config)).execute()
    failures: dict[tuple[str, str], str] = {}
    requests, end, is_stopped = 0, monotonic() + target.seconds, False
    for event in stream:
        match event:
            case events.ScenarioFinished() | events.FuzzScenarioFinished():
                requests += count(event.recorder, tally)
                for case_id, checks in event.recorder.checks.items():
                    label = event.recorder.cases[case_id].value.operation.label
                    for check in checks:
                        if (info := check.failure_info) is not None:
                            text = f"{check.name}: {label}\n{info.failure}\n{info.code_sample}"
                            failures.setdefault((label, check.name), text)
            case events.NonFatalError():
                key = (event.label, type(event.value).__name__)
                failures.setdefault(key, f"{event.label}: {event.value}")
            case events.FatalError():
                raise event.exception
            case _:
                pass
        if monotonic() > end and not is_stopped:
            is_stopped = True
            stream.stop()
    assert requests > 0
    first = list(failures.values())[:_MAX_PRINTED]
    more = [f"and {len(failures) - len(first)} more"] if len(failures) > len(first) else []
    assert not failures, "\n\n".join([*first, *more]) + f"\n(seed {target.seed})"


def count(recorder: ScenarioRecorder, tally: Tally) -> int:
    """Count the responses of a scenario and the links that it followed; return the number of responses."""
    for case_id, interaction in recorder.interactions.items():
        node = recorder.cases[case_id]
        status = interaction.response.status_code if interaction.response else 0
        operation = node.value.operation.definition.raw["operationId"]
        tally.count_response(operation, status)
        if node.transition is not None and node.is_transition_applied and node.parent_id is not None:
            source = recorder.cases[node.parent_id].value.operation.definition.raw["operationId"]
            tally.count_link(source, operation, status)
    return len(recorder.interactions)


def test_the_examples_of_the_document_are_answered(
    target: Target, tally: Tally, contract: dict[str, Any]
) -> None:
    send(Phase.EXAMPLES, target, tally, contract)


def test_values_at_and_beyond_every_edge_are_answered(
    target: Target, tally: Tally, contract: dict[str, Any]
) -> None:
    """Accepted within limits, refused beyond; other methods and requests without the key are refused."""
    send(Phase.COVERAGE, target, tally, contract)


def test_random_values_are_answered(target: Target, tally: Tally, contract: dict[str, Any]) -> None:
    send(Phase.FUZZING, target, tally, contract)


def test_random_walks_along_the_links_are_answered(
    target: Target, tally: Tally, contract: dict[str, Any]
) -> None:
    """A created resource exists, and a removed one is gone."""
    send(Phase.STATEFUL, target, tally, contract)
