"""The contract as an engine serves it: a page and two documents, without authentication."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html import unescape

import httpx
import pytest
import yaml
from openapi_spec_validator import validate

from kb_contracts.api.operations import OPERATIONS
from kb_contracts.openapi import written
from kb_http.documents import PATHS
from tests.support import engines
from tests.support.patience import ANSWER_SECONDS


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with (
        engines.engine(tmp_path_factory.mktemp("home"), api_key="secret") as url,
        httpx.Client(base_url=url, timeout=ANSWER_SECONDS) as client,
    ):
        yield client


def test_the_page_has_every_operation_and_needs_neither_key_nor_script(http: httpx.Client) -> None:
    response = http.get("/docs")
    assert response.status_code == 200
    assert response.headers["Content-Type"] == "text/html; charset=utf-8"
    assert "script" not in response.headers["Content-Security-Policy"]
    assert "<script" not in response.text
    summaries = unescape(re.sub(r"<[^>]*>", " ", response.text))
    for operation in OPERATIONS:
        assert operation.summary in summaries
        assert operation.path in summaries
    assert "expected_version?" in summaries
    assert "If-Match (header)" in summaries


@pytest.mark.parametrize("path", PATHS)
def test_the_documents_are_those_of_the_repository(http: httpx.Client, path: str) -> None:
    document = http.get(path).json()
    validate(document)
    assert document == json.loads(json.dumps(yaml.safe_load(written(PATHS[path]))))


def test_only_the_published_documents_are_served_without_a_key(http: httpx.Client) -> None:
    for path in ("/docs/", "/docs/x", "/openapi", "/openapi/other.json", "/api/v1/status"):
        assert http.get(path).status_code == 401, path
    assert http.post("/docs").status_code == 405
