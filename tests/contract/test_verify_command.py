"""The reports of `kb verify` about an engine that breaks a promise, is in use, or is unreachable."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any
from unittest.mock import patch
from xml.etree import ElementTree

import httpx
import msgspec
import pytest
from aiohttp import web

from kb_cli.output import Exit
from kb_config.installing import install_command
from kb_contracts.api import ragler as r
from kb_contracts.api.operations import OPERATIONS, ApiSurface
from kb_http import mount
from kb_http.mount import build_application
from kb_verify import Outcome, Results, Status, Target, run
from kb_verify.report import html
from kb_verify.run import SUITE
from tests.contract.conftest import kb_verify
from tests.mutation.mutants import MUTANTS
from tests.support.commands import ended
from tests.support.engines import API_KEY, engine, simulator
from tests.support.patience import ANSWER_SECONDS, COMMAND_SECONDS

pytestmark = pytest.mark.process

API = "/api/v1"
GIVEN_UP_AFTER = 10
"""Time-out for one answer while one operation hangs, in seconds; all other operations must meet it."""
UUID = "00000000-0000-4000-8000-000000000000"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def calling(url: str) -> httpx.Client:
    """Return a client with the key, which loads no certificates."""
    headers = {"Authorization": f"Bearer {API_KEY}"}
    return httpx.Client(base_url=url, headers=headers, timeout=ANSWER_SECONDS, verify=False)


def without_ragler() -> AbstractContextManager[Any]:
    """Inside the block, new simulators serve none of RAGler's operations."""
    table = tuple(each for each in OPERATIONS if each.surface is not ApiSurface.RAGLER)
    served = {operation.id for operation in table}

    def build(handlers: Mapping[str, Any], **others: Any) -> web.Application:
        kept = {id_: handler for id_, handler in handlers.items() if id_ in served}
        return build_application(kept, operations=table, **others)

    return patch.object(mount, "build_application", build)


def test_a_broken_promise_is_reported_and_a_skipped_one_is_not_broken(tmp_path: Path) -> None:
    """Exit status 1. The promise, the requirement and the reason are named; no other promise is broken.

    Those about RAGler's operations, which this engine does not serve, are not shown, with the reason.
    """
    [mutant] = (each for each in MUTANTS if each.name == "a patch resets created_at")
    with without_ragler(), mutant.broken(), simulator() as url:
        done = kb_verify(url, "--quick", "--report", "out", cwd=tmp_path)
        unshown = run(Target(url, API_KEY), tests=[f"{SUITE}.test_vector_search"])
    assert unshown.passed
    assert {outcome.status for outcome in unshown.outcomes} == {Status.SKIPPED}
    assert done.returncode == 1
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    (broken,) = [row for row in rows if row[3] == "BROKEN"]
    assert broken[:3] == ["documents", "a patched note keeps created at", "E18"]
    assert "broken: E18 It keeps created_at" in done.stderr
    whys = {family: why for family, _, _, state, why in rows if state == "not shown"}
    assert whys.keys() == {"access", "collections", "vector_search"}
    assert all("does not serve RAGler's operations" in why for why in whys.values())
    assert ", 1 broken, " in done.stderr
    suite = ElementTree.parse(tmp_path / "out" / "junit.xml").getroot()[0]
    assert suite.attrib["failures"] == "1"
    page = (tmp_path / "out" / "verification.html").read_text("utf-8")
    assert "test_a_patched_note_keeps_created_at" in page
    assert API_KEY not in page + done.stdout + done.stderr


@web.middleware
async def answers_html(request: web.Request, handler: Handler) -> web.StreamResponse:
    """An engine whose problem documents have the type HTML, and which omits the tags of a document."""
    response = await handler(request)
    if response.status == 404:
        response.content_type = "text/html"
    if request.method == "GET" and "/documents" in request.path and isinstance(response, web.Response):
        document = msgspec.json.decode(response.body)  # type: ignore[arg-type]  # the adapter sends bytes
        document["tags"] = []
        response.body = msgspec.json.encode(document)
    return response


def test_a_failed_promise_shows_the_difference_without_options_of_pytest(tmp_path: Path) -> None:
    """A wrong Content-Type is named, and a difference is shown in full, without pytest's advice."""
    with engine(tmp_path, [answers_html]) as url:
        results = run(
            Target(url=url, api_key=API_KEY),
            quick=True,
            tests=[f"{SUITE}.test_documents"],
            only=["-k", "absent_document or filtered or documents_come"],
        )
    failed = {outcome.name: outcome for outcome in results.of(Status.FAILED)}
    assert any(
        "has the Content-Type 'text/html', not 'application/problem+json'" in each.why
        for each in failed.values()
    )
    assert "AssertionError" not in {each.why for each in failed.values()}
    assert not [each.details for each in failed.values() if "-vv" in each.details or "Use -v" in each.details]


def failing(answer: Handler, *operations: str) -> Any:
    """Return a middleware that answers these operations (as `GET /tags`) with `answer`."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        line = f"{request.method} {request.path.removeprefix(API)}"
        return await (answer if line in operations else handler)(request)

    return middleware


async def hangs(_request: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError("an event that nothing sets")


async def breaks(request: web.Request) -> web.StreamResponse:
    """Close the connection without an answer."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


def test_of_an_operation_that_hangs_one_time_out_is_waited_for(tmp_path: Path) -> None:
    """Every promise that needs it names it; the error of a broken connection names its request."""
    with engine(tmp_path, [failing(hangs, "GET /tags"), failing(breaks, "GET /status")]) as url:
        results = run(
            Target(url=url, api_key=API_KEY, timeout=GIVEN_UP_AFTER),
            tests=[f"{SUITE}.test_{name}" for name in ("documents", "protocol", "state", "generated")],
            only=["-k", "tags or status or edge"],
        )
    whys = [outcome.why.partition("\n")[0] for outcome in results.of(Status.FAILED)]
    waited = f"GET {API}/tags gave no answer in {GIVEN_UP_AFTER} s"
    assert (whys.count(waited), whys.count(f"nothing was generated: {waited}")) == (1, 1)
    assert whys.count(f"GET {API}/tags was not sent: {waited}") > 1
    assert any(why.startswith(f"GET {API}/status gave no answer: ") for why in whys), whys
    assert results.of(Status.PASSED)


# A background job of a shell ignores the signal, and so do its children, unless they restore the handler.
_INTERRUPTED = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from kb_cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def test_an_interrupted_run_says_what_is_known(tmp_path: Path) -> None:
    """Also if only this process is interrupted; unchecked promises are not reported as kept."""
    hung = Event()

    async def hangs_visibly(request: web.Request) -> web.StreamResponse:
        hung.set()
        return await hangs(request)

    with (
        engine(tmp_path, [failing(hangs_visibly, "GET /tags")]) as url,
        subprocess.Popen(
            [sys.executable, "-c", _INTERRUPTED, "verify", url, "--quick"],
            env={**os.environ, "KB_API_KEY": API_KEY},
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        try:
            assert hung.wait(COMMAND_SECONDS)
            process.send_signal(signal.SIGINT)
            out, error = process.communicate(timeout=COMMAND_SECONDS)
        finally:
            process.kill()
    assert process.returncode == Exit.INTERRUPTED, error
    assert "\tkept\t" in out
    assert "interrupted, the others were not looked at" in error


def test_verifying_twice_in_a_minute_is_not_refused(tmp_path: Path) -> None:
    """The check for an empty base is limited separately from the suite, which uses up its rate limits."""
    with engine(tmp_path) as url:
        with calling(url) as http:
            for _ in range(r.LIMITS["listCollections"] + 1):
                http.get("/collections")
        done = kb_verify(url, "--quick", "--report", "/dev/null/none", cwd=tmp_path)
    assert "--report" in done.stderr  # the check of the base has passed


def test_erase_empties_the_base_before_the_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    """One module of the suite runs here. `make mutants` begins with the suite on the simulator."""
    monkeypatch.setattr("kb_cli.verify.run_suite", partial(run, tests=[f"{SUITE}.test_state"]))
    with simulator() as url, calling(url) as http:
        http.post("/api/v1/jobs", json={"text": "granite"}).raise_for_status()
        done = ended("verify", url, "--quick", "--erase", KB_API_KEY=API_KEY)
        assert http.get("/api/v1/documents").json()["total"] == 0
    assert done.returncode == 0, done.stderr
    assert ", 0 broken, 0 not shown" in done.stderr


def test_a_base_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    """The base is left unchanged."""
    with simulator() as url, calling(url) as http:
        job = http.post("/api/v1/jobs", json={"text": "granite"}).json()
        http.get(f"/api/v1/jobs/{job['id']}", params={"wait": 30})
        refused = kb_verify(url, "--quick", cwd=tmp_path)
        assert refused.returncode == 2
        assert "1 document," in refused.stderr
        assert "--erase" in refused.stderr
        assert http.get("/api/v1/documents").json()["total"] == 1


def test_a_base_with_a_description_alone_is_not_empty(tmp_path: Path) -> None:
    """A description that a user wrote is not removed without permission."""
    with simulator() as url, calling(url) as http:
        http.put(f"/collections/{UUID}", json={"name": "guides"}).raise_for_status()
        refused = kb_verify(url, "--quick", cwd=tmp_path)
        assert refused.returncode == 2
        assert "1 collection " in refused.stderr
        assert http.get(f"/collections/{UUID}").json()["name"] == "guides"


def test_no_engine_is_exit_status_3(tmp_path: Path) -> None:
    done = kb_verify("http://127.0.0.1:9", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (3, "")
    assert "no engine answers at http://127.0.0.1:9" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_wrong_key_is_told(tmp_path: Path) -> None:
    with simulator() as url:
        done = kb_verify(url, cwd=tmp_path, environ={"KB_API_KEY": "wrong"})
    assert (done.returncode, done.stdout) == (1, "")
    assert "KB_API_KEY" in done.stderr


def test_without_its_extra_the_command_says_how_to_get_it(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, package=None: "
        "None if name == 'schemathesis' else find(name, package)\n"
    )
    with simulator() as url:
        done = kb_verify(url, cwd=tmp_path, environ={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 1
    assert "the package schemathesis is not installed; install what `kb verify` needs with: " in done.stderr
    assert done.stderr.endswith(install_command("verify") + "\n")


def test_a_page_escapes_what_an_engine_says() -> None:
    """An engine's texts are untrusted."""
    hostile = "<script>alert(1)</script>"
    outcome = Outcome(
        id=hostile,
        family=hostile,
        name=hostile,
        promise=hostile,
        requirements=["E18"],
        status=Status.FAILED,
        why=hostile,
        details=hostile,
        seconds=0.1,
    )
    page = html(Results(url=hostile, seed=7, outcomes=[outcome], operations=[], links=[]))
    assert hostile not in page
    assert "&lt;script&gt;" in page
