"""The engine client's pure parts: circuit breaker, retries, versions, responses, headers, error texts."""

from __future__ import annotations

import contextlib
import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kb_contracts.api.errors import ERRORS, EngineError
from kb_contracts.api.operations import GET_HEALTH, GET_STATUS, SEARCH
from kb_server.engine_client.client import decode, header_lines
from kb_server.engine_client.errors import (
    EngineBadAnswer,
    EngineBusy,
    EngineFailed,
    EngineFault,
    EngineTimeout,
    EngineTooOld,
    EngineUnauthorized,
    EngineUnreachable,
    Refused,
)
from kb_server.engine_client.http1 import RawResponse
from kb_server.engine_client.port import MIN_ENGINE_VERSION, check_version
from kb_server.engine_client.problems import fault_of
from kb_server.engine_client.transport import Breaker, Circuit, RetryPolicy
from kb_server.engine_faults import tool_error
from kb_server.toolsets.kb.kb_tool import ENGINE_WORDS

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def answer(status: int, body: bytes = b"{}", kind: str = "application/json", **rest: Any) -> RawResponse:
    return RawResponse(status=status, content_type=kind, body=body, **rest)


def problem(code: str, **members: Any) -> RawResponse:
    error = EngineError(code, "What happened.", **members)
    return answer(error.kind.status, msgspec.json.encode(error.problem()), "application/problem+json")


class TestCircuit:
    def test_it_opens_at_the_threshold_and_says_for_how_long(self) -> None:
        breaker = Breaker(threshold=2, cooldown=2.0)
        breaker.failed(10.0)
        assert breaker.allows(10.0)
        breaker.failed(10.0)
        assert not breaker.allows(11.5)
        now = 11.5
        assert breaker.wait(now) == pytest.approx(0.5)

    def test_a_success_in_between_forgets_the_failures(self) -> None:
        breaker = Breaker(threshold=2)
        breaker.failed(0.0)
        breaker.succeeded()
        breaker.failed(0.0)
        assert breaker.state is Circuit.CLOSED

    @pytest.fixture
    def probed(self) -> Breaker:
        """Open at 0, with its one probe pending at 2."""
        breaker = Breaker(threshold=1, cooldown=2.0)
        breaker.failed(0.0)
        assert breaker.allows(2.0)
        assert not breaker.allows(2.0)
        return breaker

    def test_a_probe_that_succeeds_closes_it(self, probed: Breaker) -> None:
        probed.succeeded()
        assert probed.allows(2.0)
        assert probed.allows(2.0)

    def test_a_failed_probe_opens_it_again(self, probed: Breaker) -> None:
        probed.failed(3.0)
        now = 3.0
        assert probed.wait(now) == 2.0

    def test_a_probe_that_takes_long_does_not_hold_the_others_up(self, probed: Breaker) -> None:
        """An upload may be the probe: each cooldown lets one more call try."""
        assert not probed.allows(3.9)
        assert probed.allows(4.0)

    def test_a_probe_that_was_given_up_frees_the_next(self, probed: Breaker) -> None:
        probed.abandoned()
        assert probed.allows(2.0)


class TestRetries:
    @given(made=st.integers(1, 3), jitter=st.floats(0, 1), told=st.floats(0, 5))
    def test_a_wait_is_jittered_and_never_under_what_the_engine_asks(
        self, made: int, jitter: float, told: float
    ) -> None:
        delay = RetryPolicy().delay(
            EngineBusy("busy", retry_after=told), made=made, elapsed=0.0, random=lambda: jitter
        )
        assert delay is not None
        assert told <= delay <= max(told, 0.1 * 2 ** (made - 1))

    def test_attempts_and_the_whole_time_are_bounded(self) -> None:
        policy, fault = RetryPolicy(attempts=4, deadline=20.0), EngineBusy("busy", retry_after=15.0)
        assert policy.delay(fault, made=3, elapsed=4.0, random=lambda: 0.0) == 15.0
        assert policy.delay(fault, made=4, elapsed=4.0, random=lambda: 0.0) is None
        assert policy.delay(fault, made=3, elapsed=6.0, random=lambda: 0.0) is None

    @pytest.mark.parametrize(
        "fault",
        [
            EngineTimeout("read_timeout"),
            EngineFailed("500"),
            EngineUnauthorized("no"),
            EngineBadAnswer("html"),
            Refused("document_not_found", "no"),
        ],
    )
    def test_permanent_faults_are_not_retried(self, fault: EngineFault) -> None:
        assert RetryPolicy().delay(fault, made=1, elapsed=0.0, random=lambda: 0.0) is None


class TestVersions:
    @pytest.mark.requirement("E35")
    def test_the_least_version_is_v3(self) -> None:
        assert MIN_ENGINE_VERSION == "v3.0.0"

    @pytest.mark.parametrize(
        "version", ["v3.0.0", "3.0.0", "v3.0.1", "v3.1", "v4.0.0", "v3.0.0-rc1", "v10.0"]
    )
    def test_a_version_from_the_least_on_is_taken(self, version: str) -> None:
        check_version(version)

    @pytest.mark.requirement("E35")
    @pytest.mark.parametrize("version", ["v2.9.9", "2.0", "v0.1.0", "dev", "", "3", "v3.x"])
    def test_an_older_one_is_refused_with_both_versions(self, version: str) -> None:
        with pytest.raises(EngineTooOld) as refused:
            check_version(version)
        assert version in refused.value.detail
        assert "v3.0.0" in refused.value.detail


class TestAnswers:
    def test_unknown_members_are_passed_over(self) -> None:
        health = decode(GET_HEALTH, answer(200, b'{"status":"ok","mood":"fine"}'))
        assert health.status == "ok"

    @pytest.mark.parametrize(
        "body",
        [b"", b"not json", b"[]", b"{}", b'{"status":"odd"}', b"\xff\xfe", b'{"status":', b"[" * 100_000],
    )
    def test_a_body_that_does_not_fit_is_a_bad_answer(self, body: bytes) -> None:
        with pytest.raises(EngineBadAnswer):
            decode(GET_HEALTH, answer(200, body))

    @pytest.mark.parametrize("kind", ["text/html", "text/plain", ""])
    def test_a_response_of_another_content_type_is_a_bad_answer(self, kind: str) -> None:
        """A proxy's page is not an engine's response, whatever its status."""
        with pytest.raises(EngineBadAnswer):
            decode(GET_HEALTH, answer(200, b'{"status":"ok"}', kind))

    @pytest.mark.parametrize("code", sorted(ERRORS))
    def test_every_code_of_the_contract_has_its_fault(self, code: str) -> None:
        """Codes about the caller are refusals with the same code; further ones are faults of the engine."""
        fault = fault_of(SEARCH, problem(code), now=NOW)
        expected: dict[str, type[EngineFault]] = {
            "unauthorized": EngineUnauthorized,
            "rate_limited": EngineBusy,
            "queue_full": EngineBusy,
            "not_ready": EngineBusy,
            "internal": EngineFailed,
            "route_not_found": EngineBadAnswer,
            "method_not_allowed": EngineBadAnswer,
        }
        assert type(fault) is expected.get(code, Refused)
        if isinstance(fault, Refused):
            assert fault.reason == code

    @pytest.mark.parametrize(
        ("status", "fault"),
        [
            (401, EngineUnauthorized),
            (403, EngineUnauthorized),
            (404, EngineBadAnswer),
            (405, EngineBadAnswer),
            (302, EngineBadAnswer),
            (304, EngineBadAnswer),
            (199, EngineBadAnswer),
            (418, Refused),
            (429, EngineBusy),
            (500, EngineFailed),
            (502, EngineFailed),
            (503, EngineBusy),
            (599, EngineFailed),
        ],
    )
    def test_a_status_without_a_document_has_its_fault(self, status: int, fault: type[EngineFault]) -> None:
        assert type(fault_of(SEARCH, answer(status, b"<html>", "text/html"), now=NOW)) is fault

    @pytest.mark.parametrize(("status", "again"), [(500, False), (502, True), (504, True), (507, False)])
    def test_a_gateway_that_did_not_get_through_is_asked_again(self, status: int, again: bool) -> None:
        """An engine behind a proxy may be restarting; the engine's own errors are final."""
        assert fault_of(SEARCH, answer(status, b"<html>", "text/html"), now=NOW).transient is again
        assert fault_of(SEARCH, problem("internal"), now=NOW).transient is False

    @pytest.mark.parametrize(
        ("body", "again"), [(b"", True), (b'{"version":"v3', True), (b'{"version":3}', False), (b"<", False)]
    )
    def test_an_answer_that_did_not_arrive_whole_is_asked_for_again(self, body: bytes, again: bool) -> None:
        """A retried mutation gets its stored response; a complete invalid response would be repeated."""
        with pytest.raises(EngineBadAnswer) as raised:
            decode(GET_STATUS, answer(200, body, "application/json"))
        assert raised.value.transient is again

    def test_an_unknown_code_keeps_its_words(self) -> None:
        body = json.dumps({"code": "moon_phase", "detail": "Wait for the full moon."}).encode()
        fault = fault_of(SEARCH, answer(422, body, "application/problem+json"), now=NOW)
        assert isinstance(fault, Refused)
        assert (fault.reason, fault.detail) == ("engine_refused", "Wait for the full moon.")

    @pytest.mark.parametrize("body", [b'{"code": 7}', b'{"code": ["x"]}', b'"text"', b"{", b"[1]", b"null"])
    def test_a_broken_problem_document_is_read_by_its_status(self, body: bytes) -> None:
        fault = fault_of(SEARCH, answer(500, body, "application/problem+json"), now=NOW)
        assert type(fault) is EngineFailed

    @pytest.mark.parametrize(
        ("header", "seconds"),
        [
            ("3", 3.0),
            ("Thu, 01 Jan 2026 00:00:30 GMT", 30.0),
            ("Wed, 31 Dec 2025 00:00:00 GMT", 0.0),
            ("-4", 0.0),
            ("999999999", 3_600.0),
            ("soon", 0.0),
            ("nan", None),
            ("inf", 3_600.0),
            (None, None),
        ],
    )
    def test_retry_after_is_seconds_or_a_date(self, header: str | None, seconds: float | None) -> None:
        fault = fault_of(SEARCH, answer(429, retry_after=header), now=NOW)
        assert fault.retry_after == seconds

    @given(
        st.integers(100, 599), st.binary(max_size=64), st.sampled_from(["application/json", "text/html", ""])
    )
    def test_no_answer_makes_it_stumble(self, status: int, body: bytes, kind: str) -> None:
        with contextlib.suppress(EngineFault):
            decode(GET_HEALTH, answer(status, body, kind))


class TestRequests:
    def test_headers_become_lines(self) -> None:
        assert header_lines({"A": "1", "B": "ü"}) == "A: 1\r\nB: ü\r\n"
        assert header_lines({}) == ""

    @pytest.mark.parametrize("value", ["a\r\nX: y", "a\rb", "a\nb", "a\n\rb", "a\0b"])
    def test_a_header_never_becomes_two(self, value: str) -> None:
        with pytest.raises(ValueError, match="line break"):
            header_lines({"A": value, "B": "b"})


class TestWords:
    @pytest.mark.parametrize(
        ("fault", "code", "words"),
        [
            (
                EngineUnreachable("connection refused", url="http://engine:8000"),
                "engine_unreachable",
                "The engine is unreachable at http://engine:8000: connection refused",
            ),
            (EngineUnauthorized("no"), "engine_unauthorized", "refused the server's KB_API_KEY"),
            pytest.param(
                Refused("document_not_found", "x"),
                "document_not_found",
                "Document 42 was not found",
                marks=pytest.mark.requirement("K45"),
            ),
        ],
    )
    def test_an_error_names_what_it_is_about(self, fault: EngineFault, code: str, words: str) -> None:
        error = tool_error(fault, ENGINE_WORDS, document_id=42)
        assert error.payload()["error"] == code
        assert words in error.message

    def test_a_busy_engine_says_when(self) -> None:
        error = tool_error(EngineBusy("Too many jobs wait.", retry_after=7.0), ENGINE_WORDS)
        assert "7 s" in error.message
        assert error.details["retry_after"] == 7.0

    def test_of_the_members_those_that_help_are_kept(self) -> None:
        """A parameter has the tool's name for it: the engine's filters are in an object."""
        members = {"current_version": 3, "parameter": "filters.date_from", "odd": 1}
        fault = Refused("invalid_parameter", "filters.date_from is 'filters.x'", members=members)
        error = tool_error(fault, ENGINE_WORDS)
        assert error.details == {"current_version": 3, "parameter": "date_from"}
        assert error.message == "The engine refused the request: date_from is 'filters.x'"

    @pytest.mark.parametrize(
        "fault",
        [
            EngineUnreachable("{url}", url="{detail}"),
            EngineTimeout("{0}"),
            EngineBusy("{x}"),
            EngineUnauthorized("{}"),
            EngineTooOld("{"),
            EngineFailed("}"),
            EngineBadAnswer("%s"),
            *(Refused(code, "{odd}") for code in sorted(ERRORS)),
            Refused("engine_refused", "{odd}"),
        ],
    )
    def test_every_fault_has_words(self, fault: EngineFault) -> None:
        assert tool_error(fault, ENGINE_WORDS).message
