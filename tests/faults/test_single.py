"""`kb up --single`: one process that is stopped and killed, and its accepted documents."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import httpx
import psutil
import pytest

from kb_cli.output import Exit
from kb_load.processes import clean_environment
from tests.faults.engine_process import long_note
from tests.support.eventually import eventually
from tests.support.mcp_http import Caller
from tests.support.patience import ANSWER_SECONDS, COMMAND_SECONDS, START_SECONDS
from tests.support.stack import Stack, running_stack

pytestmark = pytest.mark.process

NOTES = 20
SETTINGS = {"KB_EMBEDDER": "hash", "KB_INGEST_WORKERS": "1", "LOG_LEVEL": "warn"}


def kb(*arguments: str, home: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "kb_cli.main", *arguments],
        env=clean_environment(KB_HOME=str(home), KB_EMBEDDER="hash", **environment),
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
        check=False,
    )


def add_notes(stack: Stack, first: int) -> None:
    caller = Caller(stack.mcp_url)
    with caller.http:
        for number in range(first, first + NOTES):
            caller.ok("kb_addnote", text=long_note(number), wait_seconds=0)


def check_notes(stack: Stack, count: int) -> None:
    """Check that each of the first notes exists once and is found after all jobs have ended."""
    caller = Caller(stack.mcp_url)
    with caller.http:
        eventually(
            lambda: caller.ok("kb_status")["queue"],
            lambda queue: queue["queued"] == queue["running"] == 0,
            what="the end of all jobs",
        )
        for number in range(count):
            found = caller.ok("kb_search", query=f"unique{number}word", mode="fts")["results"]
            assert len({each["document_id"] for each in found}) == 1, number


@pytest.mark.requirement("R83")
def test_one_process_serves_agents_and_commands(tmp_path: Path) -> None:
    """A file is added by a command, through the engine's port, and found by an agent."""
    file = tmp_path / "bees.md"
    file.write_text("Bees keep warm in a cluster.")
    with running_stack(tmp_path / "home", "--single", **SETTINGS) as stack:
        # The probe for a reader's sandbox is a short-lived process.
        children = psutil.Process(stack.process.pid).children
        eventually(children, lambda found: found == [], what="no other process")
        added = kb("add", str(file), home=stack.home, KB_ENGINE_URL=stack.engine_url)
        assert added.returncode == 0, added.stderr
        caller = Caller(stack.mcp_url)
        with caller.http:
            assert "cluster" in caller.ok("kb_search", query="how do bees keep warm")["results"][0]["text"]
        metrics = httpx.get(f"{stack.server_url}/metrics", timeout=ANSWER_SECONDS).text
        assert 'mcp_requests_total{tool="kb_search",status="success"} 1.0' in metrics
        again = kb("up", "--single", home=stack.home, KB_MCP_PORT="0", KB_ENGINE_PORT="0")
        assert again.returncode == Exit.FAILED
        assert stack.engine_url in again.stderr


def test_accepted_notes_survive_a_stop_and_a_kill(tmp_path: Path) -> None:
    for first, number in ((0, signal.SIGTERM), (NOTES, signal.SIGKILL)):
        with running_stack(tmp_path, "--single", **SETTINGS) as stack:
            check_notes(stack, first)
            add_notes(stack, first)
            stack.process.popen.send_signal(number)
            assert stack.process.popen.wait(START_SECONDS) == (0 if number is signal.SIGTERM else -number)
    with running_stack(tmp_path, "--single", **SETTINGS) as stack:
        check_notes(stack, 2 * NOTES)
