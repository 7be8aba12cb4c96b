"""The path of one `kb_search` from the wire to the SQL and back: ARCHITECTURE.md names the files."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Iterator
from functools import reduce
from itertools import pairwise
from operator import and_
from pathlib import Path

import httpx
import pytest

from tests.support import call_trace
from tests.support.patience import ANSWER_SECONDS
from tests.support.stack import ROOT, running_stack

pytestmark = pytest.mark.process

MOST_FILES = 30
MOST_ENTRIES, MOST_ENTRIES_IN_ALL = 3, 50
SECTION = re.compile(r"^## One `kb_search`.*?(?=^## )", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Counter[str]:
    """Number of entries into each file of the project in one call: calling functions in other files.

    The minimum of five calls for each file, because timers of server and engine run during some of them. The
    connection is kept open, as by real clients.
    """
    home = tmp_path_factory.mktemp("home")
    traces = {"PYTHONPATH": str(Path(call_trace.__path__[0])), "KB_CALL_TRACE": str(home / "trace")}
    with (
        running_stack(home, KB_EMBEDDER="hash", **traces) as stack,
        httpx.Client(timeout=ANSWER_SECONDS) as client,
    ):

        def call(tool: str, **arguments: object) -> None:
            params = {"name": tool, "arguments": arguments}
            message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
            result = client.post(stack.mcp_url, json=message).raise_for_status().json()["result"]
            assert not result.get("isError"), result

        call("kb_addnote", text="bees keep warm by shivering", collection="memory")
        call("kb_search", query="how do bees keep warm", collection="memory")
        begun = []
        for question in (
            "where do bees live",
            "who is cold",
            "what shivers",
            "why keep bees",
            "is it warm",
            "the end",
        ):
            begun.append(time.monotonic_ns())
            call("kb_search", query=question, collection="memory")
    lines = [json.loads(line) for file in home.glob("trace.*") for line in file.read_text().splitlines()]
    # Work after an answer belongs to its call: each call lasts until the next one begins.
    walks = [set(entries(lines, *window)) for window in pairwise(begun)]
    return reduce(and_, (Counter(file for file, _ in walk) for walk in walks))


def entries(lines: list[tuple[int, str, object]], begun: int, ended: int) -> Iterator[tuple[str, str]]:
    """Yield (file, caller) of the calls within a time span, each once."""
    for at, file, caller in lines:
        if begun <= at <= ended:
            yield str(Path(file).relative_to(ROOT)), json.dumps(caller)


def test_a_search_runs_through_few_files_and_enters_none_again_and_again(walk: Counter[str]) -> None:
    assert len(walk) <= MOST_FILES, "\n".join(sorted(walk))
    assert {file: count for file, count in walk.items() if count > MOST_ENTRIES} == {}
    assert walk.total() <= MOST_ENTRIES_IN_ALL, walk.most_common()


def test_the_architecture_names_the_files_that_a_search_runs_through(walk: Counter[str]) -> None:
    section = SECTION.search((ROOT / "ARCHITECTURE.md").read_text("utf-8"))
    assert section is not None
    assert [file for file in walk if file not in section[0]] == []
