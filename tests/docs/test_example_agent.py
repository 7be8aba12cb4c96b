"""The example agent of the README on a large PDF."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from kb_load.processes import clean_environment
from tests.support.documents import large_pdf, sentence_of_page
from tests.support.patience import ANSWER_SECONDS, COMMAND_SECONDS
from tests.support.stack import ROOT, Stack, running_stack

pytestmark = pytest.mark.process

MEBIBYTE = 1024 * 1024


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running_stack(tmp_path_factory.mktemp("home"), KB_EMBEDDER="hash") as running:
        yield running


def run(stack: Stack, command: list[str]) -> str:
    """Run a command in the repository, which must succeed, and return its output."""
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=clean_environment(KB_ENGINE_URL=stack.engine_url, KB_HOME=str(stack.home)),
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}{done.stderr}"
    return done.stdout


def documents_of(stack: Stack) -> set[str]:
    answer = httpx.get(
        f"{stack.engine_url}/api/v1/documents", params={"limit": 1000}, timeout=ANSWER_SECONDS
    ).json()
    return {document["uid"] for document in answer["documents"]}


@pytest.mark.parametrize("mode", ["2026-07-28", "legacy"])
@pytest.mark.requirement("K29", "K38", "K56", "E16", "E32")
def test_an_agent_takes_every_first_step(stack: Stack, tmp_path: Path, mode: str) -> None:
    """With the official client: a PDF of several megabytes in chunks and by curl, notes in collections.

    The sentence is on page 17 only, and the answer must name that page. Afterwards the base is as before,
    unless the added documents are kept.
    """
    before = documents_of(stack)
    seed = 17 if mode == "legacy" else 26
    file = tmp_path / f"{mode}.pdf"
    file.write_bytes(large_pdf(20, filler_bytes=5 * MEBIBYTE, seed=seed, lines=5))
    curl_file = tmp_path / f"curl-{mode}.pdf"
    curl_file.write_bytes(large_pdf(3, filler_bytes=2 * MEBIBYTE, seed=seed + 1, lines=5))
    output = run(
        stack,
        [
            *(sys.executable, "examples/first_steps.py", "--url", stack.mcp_url, "--mode", mode),
            *("--file", str(file), "--sentence", sentence_of_page(17, seed)),
            *("--curl-file", str(curl_file)),
            *(["--keep"] if mode == "legacy" else []),
        ],
    )
    assert "on page 17" in output
    assert output.rstrip().endswith("All steps done.")
    assert (documents_of(stack) == before) is (mode != "legacy")


@pytest.mark.requirement("K28", "K59")
def test_each_document_has_exactly_one_collection_tag(stack: Stack) -> None:
    answer = httpx.get(
        f"{stack.engine_url}/api/v1/documents", params={"limit": 1000}, timeout=ANSWER_SECONDS
    ).json()
    assert answer["total"] == 5
    for document in answer["documents"]:
        collections = [tag for tag in document["tags"] if tag.startswith("collection:")]
        assert len(collections) == 1, document
