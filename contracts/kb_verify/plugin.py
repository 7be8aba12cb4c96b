"""The pytest plugin of the suite: it selects the engine, clears it before each test, records results.

    KB_VERIFY_API_KEY=… pytest -p kb_verify.plugin --pyargs kb_verify.suite \\
        --kb-url http://127.0.0.1:8000

Every test clears the base. The key comes from the environment, which is not visible in process lists.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from kb_contracts.access.reach import ACCESS, Access, access_header
from kb_contracts.api.operations import BY_ID, ApiSurface, Operation
from kb_verify.client import Client, Connections, Served, find_served
from kb_verify.results import Outcome, Results, Status, Tally
from kb_verify.run import KEY_VARIABLE, TIMEOUT, Target

_CONNECT_SECONDS = 5.0
_SILENT = pytest.StashKey[dict[str, str]]()
TARGET = pytest.StashKey[Target]()
"""The engine that is verified, in the stash of the configuration."""
_SERVED = pytest.StashKey[Served]()
_TALLY = pytest.StashKey[Tally]()
_RECORDER = pytest.StashKey["Recorder"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("kb", "the engine that is verified")
    group.addoption("--kb-url", help="its base URL, or several of one base; all is removed")
    group.addoption(
        "--kb-header", action="append", default=[], metavar="NAME:VALUE", help="a header for every request"
    )
    group.addoption("--kb-seed", type=int, default=7, help="what generated requests derive from (7)")
    group.addoption("--kb-examples", type=int, default=15, help="generated requests an operation (15)")
    group.addoption("--kb-seconds", type=float, default=60.0, help="bound on each phase of those (60)")
    group.addoption("--kb-timeout", type=float, default=TIMEOUT, help=f"wait for a response ({TIMEOUT:g})")
    group.addoption("--kb-results", metavar="FILE", help="write what came of it, as JSON")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "requirement(*ids): the requirements that a test proves")
    config.addinivalue_line("markers", "generated: sends generated requests")
    pairs = (text.partition(":") for text in config.getoption("--kb-header"))
    config.stash[TARGET] = Target(
        url=config.getoption("--kb-url") or "",
        api_key=os.environ.get(KEY_VARIABLE, ""),
        headers={name.strip(): value.strip() for name, _, value in pairs},
        seed=config.getoption("--kb-seed"),
        examples=config.getoption("--kb-examples"),
        seconds=config.getoption("--kb-seconds"),
        timeout=config.getoption("--kb-timeout"),
    )
    config.stash[_SILENT] = {}
    config.stash[_TALLY] = Tally()
    config.stash[_RECORDER] = recorder = Recorder()
    config.pluginmanager.register(recorder)


@pytest.fixture(scope="session")
def target(pytestconfig: pytest.Config) -> Target:
    chosen = pytestconfig.stash[TARGET]
    if not chosen.url:
        raise pytest.UsageError("say with --kb-url which engine to verify")
    return chosen


@pytest.fixture(scope="session")
def tally(pytestconfig: pytest.Config) -> Tally:
    return pytestconfig.stash[_TALLY]


@pytest.fixture(scope="session")
def silent(pytestconfig: pytest.Config) -> dict[str, str]:
    """The operations with a timed-out request, each with a message."""
    return pytestconfig.stash[_SILENT]


@pytest.fixture(scope="session")
def http(target: Target, pytestconfig: pytest.Config) -> Iterator[httpx.Client]:
    """Connections to the engine, with its key; the base is cleared at the end."""
    with _connections(pytestconfig, target.all_headers) as client:
        yield client
        Client(client).clear(collections=True)


@pytest.fixture
def kb(http: httpx.Client, tally: Tally) -> Client:
    """The engine with an empty base."""
    client = Client(http, tally)
    client.clear(collections=True)
    return client


@pytest.fixture(scope="session")
def served(pytestconfig: pytest.Config) -> Served:
    return pytestconfig.stash[_SERVED]


@pytest.fixture
def ragler(served: Served) -> None:
    """RAGler's operations; skips the test if the engine serves no operation of them."""
    if not served.ragler:
        pytest.skip(served.why)


@pytest.fixture
def keyless(target: Target, pytestconfig: pytest.Config) -> Iterator[httpx.Client]:
    """Connections to the engine without its key; skips the test if it needs no key."""
    if not target.api_key:
        pytest.skip("the engine is verified without a key")
    with _connections(pytestconfig, target.headers) as client:
        yield client


@pytest.fixture
def caller_of(
    kb: Client, target: Target, tally: Tally, pytestconfig: pytest.Config
) -> Iterator[Callable[[Access], Client]]:
    """Makes callers of limited access; skips the test if the engine does not announce that it enforces it."""
    if not kb.enforces_access:
        pytest.skip("the engine does not announce that it enforces who may do what (`features`)")
    with ExitStack() as stack:

        def made(access: Access) -> Client:
            headers = {**target.all_headers, ACCESS: access_header(access)}
            return Client(stack.enter_context(_connections(pytestconfig, headers)), tally)

        yield made


def _connections(config: pytest.Config, headers: Mapping[str, str]) -> httpx.Client:
    target = config.stash[TARGET]
    # Without encryption: loading the system's certificates would be the slowest part of a short run.
    encrypted = any(url.startswith("https:") for url in target.urls)
    context = ssl.create_default_context() if encrypted else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return Connections(
        urls=target.urls,
        silent=config.stash[_SILENT],
        headers=headers,
        timeout=httpx.Timeout(target.timeout, connect=min(_CONNECT_SECONDS, target.timeout)),
        verify=context,
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run behaviour tests first, then generated requests, then the check that every operation succeeded.

    Tests parametrised by operation are dropped for operations that the engine does not serve.
    """
    last = ("test_generated.py", "test_walked.py")
    items.sort(key=lambda item: last.index(item.path.name) + 1 if item.path.name in last else 0)
    served = Served()
    # An unreachable engine makes each test fail, with that reason.
    headers = config.stash[TARGET].all_headers
    with suppress(AssertionError, httpx.InvalidURL), _connections(config, headers) as client:
        served = find_served(client)
    config.stash[_SERVED] = served
    if not served.ragler:
        unserved = [item for item in items if _surface(item) is ApiSurface.RAGLER]
        items[:] = [item for item in items if item not in unserved]
        config.hook.pytest_deselected(items=unserved)


def _surface(item: pytest.Item) -> ApiSurface:
    """Return the document of the operation, or of the source of the link, that a test is about."""
    given = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    operation = given.get("operation") or BY_ID.get(str(given.get("source")))
    return operation.surface if isinstance(operation, Operation) else ApiSurface.ENGINE


def pytest_sessionfinish(session: pytest.Session) -> None:
    path = session.config.getoption("--kb-results")
    if path:
        Path(path).write_bytes(msgspec.json.encode(_results(session.config)))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print the number of requests, and the seed."""
    terminalreporter.write_line(_results(config).counts())


def _results(config: pytest.Config) -> Results:
    target, tally = config.stash[TARGET], config.stash[_TALLY]
    return Results(
        url=target.url,
        seed=target.seed,
        outcomes=config.stash[_RECORDER].outcomes,
        operations=tally.operation_counts(),
        links=tally.link_counts(),
    )


class Recorder:
    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Record the outcome of a test, or of its set-up."""
        report = yield
        if report.when != "call" and report.outcome == "passed":
            return report
        why = ""
        if report.outcome == "skipped" and isinstance(report.longrepr, tuple):
            why = report.longrepr[2].removeprefix("Skipped: ")
        elif call.excinfo is not None:
            why = str(call.excinfo.value).strip() or call.excinfo.typename
        function = getattr(item, "function", None)
        marks = item.iter_markers("requirement")
        self.outcomes.append(
            Outcome(
                id=f"{item.path.name}::{item.name}",
                family=item.path.stem.removeprefix("test_"),
                name=getattr(item, "originalname", None) or item.name,
                promise=(function.__doc__ or "").split("\n\n")[0].strip() if function else "",
                requirements=sorted({str(id_) for mark in marks for id_ in mark.args}),
                status=Status(report.outcome),
                why=why,
                details=report.longreprtext if report.outcome == "failed" else "",
                seconds=round(report.duration, 3),
            )
        )
        return report
