"""`kb up`, `serve`, `engine` and `sim` as processes: output and exit."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from kb_cli.output import Exit
from kb_load.processes import clean_environment, free_port
from kb_server.__main__ import main as server_main
from tests.support.commands import ended, entry_ended
from tests.support.eventually import eventually
from tests.support.patience import ANSWER_SECONDS, COMMAND_SECONDS, START_SECONDS
from tests.support.stack import Process, Stack, running_stack, wait_until_ready

pytestmark = pytest.mark.process

KEY = "agents-secret"


@contextmanager
def started(home: Path, *flags: str) -> Iterator[Stack]:
    with running_stack(home, *flags, KB_EMBEDDER="hash", KB_MCP_API_KEY=KEY, LOG_LEVEL="warn") as running:
        yield running


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """`kb up`, shared by tests that leave it running; its exit status is checked at the end."""
    with started(tmp_path_factory.mktemp("home")) as running:
        yield running
        left = psutil.Process(running.process.pid).children(recursive=True)
        assert running.process.stop() == 0
        assert not any(child.is_running() for child in left)


@pytest.fixture
def own_stack(tmp_path: Path) -> Iterator[Stack]:
    with started(tmp_path / "home") as running:
        yield running


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield int(server.getsockname()[1])


def children(stack: Stack) -> dict[str, psutil.Process]:
    found = psutil.Process(stack.process.pid).children()
    return {child.cmdline()[child.cmdline().index("kb_cli.main") + 1]: child for child in found}


def command(
    *arguments: str, module: str = "kb_cli.main", **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", module, *arguments],
        env=clean_environment(**{"KB_EMBEDDER": "hash", **environment}),
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
        check=False,
    )


@pytest.mark.parametrize(("flags", "number"), [((), signal.SIGINT), (("--single",), signal.SIGTERM)])
def test_up_says_where_it_is_stops_cleanly_and_leaves_no_process(
    tmp_path: Path, flags: tuple[str, ...], number: signal.Signals
) -> None:
    """The endpoint, the data folder, and the line for Claude Code with the header but not the key."""
    with started(tmp_path / "home", *flags) as stack:
        check_address_and_end(stack, number)


def check_address_and_end(stack: Stack, number: signal.Signals) -> None:
    shown = stack.process.output()
    assert f"endpoint     {stack.mcp_url}\n" in shown
    assert f"pages        {stack.server_url}/\n" in shown
    assert f"data folder  {stack.home}\n" in shown
    assert "files        are kept up to 5 GiB" in shown
    status = httpx.get(f"{stack.engine_url}/api/v1/status", timeout=ANSWER_SECONDS).json()
    assert status["storage"]["kept_originals_bytes"] == 0
    line = f"claude mcp add --transport http kb {stack.mcp_url}"
    assert f'{line} --header "Authorization: Bearer $KB_MCP_API_KEY"\n' in shown
    assert KEY not in shown
    assert "export" not in shown, "the other commands find both in the data folder"

    running = psutil.Process(stack.process.pid).children(recursive=True)
    stack.process.popen.send_signal(number)
    assert stack.process.popen.wait(START_SECONDS) == 0
    assert not any(child.is_running() for child in running)
    assert "Traceback" not in stack.process.output()


def test_up_names_the_header_where_named_keys_exist(tmp_path: Path) -> None:
    home = tmp_path / "home"
    ended("keys", "create", "ci", KB_HOME=str(home))
    with running_stack(home, "--single", "--home", str(home), KB_EMBEDDER="hash", LOG_LEVEL="warn") as stack:
        shown = stack.process.output()
    line = f"claude mcp add --transport http kb {stack.mcp_url}"
    assert f'{line} --header "Authorization: Bearer $TOKEN"\n' in shown
    assert "kb keys create prints it" in shown
    assert f"kb connect and other commands:\n  export KB_HOME={home}\n" in shown


def test_doctor_finds_nothing_wrong_with_a_stack_that_runs(stack: Stack, tmp_path: Path) -> None:
    settings = {"HOME": str(tmp_path), "KB_HOME": str(stack.home), "KB_MCP_API_KEY": KEY}
    done = ended("doctor", **settings)
    assert done.returncode == Exit.OK, done.stdout
    assert f"server\t{stack.mcp_url}\n" in done.stdout
    assert not any(line.startswith("error") for line in done.stdout.splitlines())
    without_key = ended("connect", "cursor", "--yes", **settings | {"KB_MCP_API_KEY": ""})
    assert f"{stack.mcp_url} refuses this client, key missing" in without_key.stderr
    assert ended("connect", "cursor", "--yes", **settings).stderr == ""


@pytest.mark.parametrize("path", ["", "/mcp"])
def test_the_address_of_the_mcp_server_is_recognised(stack: Stack, tmp_path: Path, path: str) -> None:
    where = {"KB_HOME": str(stack.home), "KB_MCP_API_KEY": KEY}
    done = ended("status", "--url", stack.server_url + path, **where)
    assert done.returncode == Exit.USAGE
    assert f"{stack.server_url}{path} is the MCP server" in done.stderr
    assert f"at {stack.engine_url} " in done.stderr


@pytest.mark.parametrize(
    ("part", "name", "ready"), [("engine", "engine", "engine_url"), ("serve", "MCP server", "server_url")]
)
def test_up_starts_again_what_died_and_says_which(stack: Stack, part: str, name: str, ready: str) -> None:
    before = children(stack)
    before[part].kill()
    eventually(
        stack.process.output,
        lambda text: f"the {name} was ended by signal 9; it is started again in 1 s\n" in text,
        what="word of it",
    )
    eventually(stack.process.output, lambda text: f"the {name} runs again\n" in text, what="it")
    assert httpx.get(f"{getattr(stack, ready)}/healthz", timeout=ANSWER_SECONDS).status_code == 200
    other = "serve" if part == "engine" else "engine"
    assert children(stack)[other] == before[other]


def test_the_children_end_when_up_is_killed(own_stack: Stack) -> None:
    """A killed parent leaves no orphan that holds the ports."""
    running = list(children(own_stack).values())
    own_stack.process.popen.kill()
    _, alive = psutil.wait_procs(running, timeout=START_SECONDS)
    assert alive == []


UNKNOWN_TOOLSET = "there is no toolset 'nothing'; there are kb, "
ELSEWHERE = {"KB_MCP_HOST": "192.0.2.1", "KB_MCP_PORT": "0"}


@pytest.mark.parametrize(
    ("arguments", "setting", "status", "words"),
    [
        (("up",), {"KB_ENGINE_PORT": "{taken}"}, Exit.FAILED, ("{taken}", "KB_ENGINE_PORT", "try: kb up ")),
        (("up",), {"KB_MCP_PORT": "{taken}"}, Exit.FAILED, ("{taken}", "KB_MCP_PORT")),
        (
            ("up", "--single"),
            {"KB_MCP_PORT": "{taken}"},
            Exit.FAILED,
            ("KB_MCP_PORT", "kb up --single --port "),
        ),
        (("up", "--single"), {"KB_HOME": "{file}/home"}, Exit.FAILED, ("{file}", "KB_HOME")),
        (("up", "--single"), {"KB_EMBEDDER": "nothing"}, Exit.FAILED, ("KB_EMBEDDER",)),
        (("up", "--single"), {"KB_WORKERS": "2"}, Exit.USAGE, ("KB_WORKERS=2", "leave --single out")),
        (("up", "--engine-port", "many"), {}, Exit.USAGE, ("PORT=",)),
        (("serve", "--port", "99999"), {}, Exit.USAGE, ("PORT=",)),
        (("up",), {"KB_TOOLSETS": "kb,nothing"}, Exit.USAGE, (UNKNOWN_TOOLSET,)),
        (("stdio",), {"KB_TOOLSETS": "kb,nothing"}, Exit.USAGE, (UNKNOWN_TOOLSET,)),
    ],
)
def test_a_failed_start_is_one_line_that_names_the_setting(
    tmp_path: Path,
    taken: int,
    arguments: tuple[str, ...],
    setting: dict[str, str],
    status: Exit,
    words: tuple[str, ...],
) -> None:
    file = tmp_path / "file"
    file.touch()
    values = {"taken": taken, "file": file}
    free = {"KB_HOME": str(tmp_path), "KB_ENGINE_PORT": str(free_port()), "KB_MCP_PORT": str(free_port())}
    free["KB_EMBEDDER"] = "hash"
    done = ended(*arguments, **free | {name: value.format(**values) for name, value in setting.items()})
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (status, "", 1)
    assert all(word.format(**values) in done.stderr for word in words)


def test_up_adds_nothing_to_the_line_of_a_child_that_cannot_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ports = {"KB_ENGINE_PORT": str(free_port()), "KB_MCP_PORT": str(free_port())}
    done = command("up", KB_HOME=str(tmp_path / "file" / "home"), **ports)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (Exit.FAILED, "", 1)
    assert str(tmp_path / "file") in done.stderr
    assert "KB_HOME" in done.stderr


@pytest.mark.parametrize(
    ("setting", "status", "words"),
    [
        ({"KB_TOOLSETS": "nothing"}, Exit.USAGE, (UNKNOWN_TOOLSET,)),
        ({"KB_MCP_PORT": "many"}, Exit.USAGE, ("KB_MCP_PORT",)),
        (ELSEWHERE, Exit.FAILED, ("192.0.2.1", "KB_MCP_HOST")),
    ],
)
def test_kb_serve_and_kb_server_refuse_settings_with_the_same_message(
    tmp_path: Path, setting: dict[str, str], status: Exit, words: tuple[str, ...]
) -> None:
    ours = ended("serve", KB_HOME=str(tmp_path), **setting)
    alone = entry_ended(server_main, KB_HOME=str(tmp_path), **setting)
    assert (ours.returncode, alone.returncode) == (status, status)
    ours_last, alone_last = ours.stderr.splitlines()[-1], alone.stderr.splitlines()[-1]
    assert ours_last.removeprefix("kb serve: ") == alone_last.removeprefix("kb server: ")
    assert all(word in ours.stderr for word in words)


@pytest.mark.parametrize("module", [("kb_cli.main", "serve"), ("kb_server",)])
def test_the_server_alone_runs_without_an_engine(tmp_path: Path, module: tuple[str, ...]) -> None:
    """It serves calls, and /readyz says that no engine is ready; both ways of starting it do."""
    port, nobody = free_port(), free_port()
    process = Process.start(
        "-m", *module, KB_MCP_PORT=str(port), KB_TOOLSETS="kb,textfile",
        KB_HOME=str(tmp_path), KB_ENGINE_URL=f"http://127.0.0.1:{nobody}",
    )  # fmt: skip
    try:
        wait_until_ready(f"http://127.0.0.1:{port}/healthz", process)
        ready = httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=ANSWER_SECONDS)
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        listed = httpx.post(f"http://127.0.0.1:{port}/mcp", json=message, timeout=ANSWER_SECONDS).json()[
            "result"
        ]["tools"]
    finally:
        status = process.stop()
    assert (status, ready.status_code) == (0, 503)
    assert str(nobody) in ready.json()["reason"]
    assert {"kb_search", "get_kb_info"} <= {tool["name"] for tool in listed}
