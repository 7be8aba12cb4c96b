"""The commands of each page, run in order as written, in a new home with a running engine.

A command `kb` runs in this process, which spares its start; its words are split by the shell.

All pages share engine and server, with the hash embedder, because vector search is not tested here.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise, takewhile
from pathlib import Path

import pytest

from kb_cli.command_line import commands
from kb_load.processes import clean_environment, free_port
from tests.support.commands import Ended, ended
from tests.support.eventually import eventually
from tests.support.page_commands import NOT_RUN, PAGES, blocks_of, commands_of
from tests.support.patience import COMMAND_SECONDS
from tests.support.stack import ROOT, Process, Stack, running_stack, wait_until_ready

pytestmark = pytest.mark.process

BIN = Path(sys.executable).parent
SERVES = re.compile(r"(?:\S+/)?kb (sim|watch)\b")
ALONE = re.compile(r"(?:\S+/)?kb [^&|;<>]*")
"""A command `kb` that is the whole line."""
FOUND_NOTHING = "Nothing found."
"""Output of `kb search` without hits; no page has such an example."""
AT_WORK = " unchanged"
"""Output of `kb watch` after its first scan of the folder."""
FOLLOWED = [page for page in PAGES if set(commands_of(page)) - NOT_RUN.get(page, {}).keys()]
FIRST = ("README.md", "docs/first-hour.md", "docs/memory.md")
"""The first pages for a new reader, in the order of reading, on one base."""
EXPORTS = ROOT / "tests" / "unit" / "cli" / "imported"


@dataclass
class Reader:
    """A reader of a page: a home, a folder like the checkout, and a shell that keeps exports."""

    stack: Stack
    home: Path
    exported: dict[str, str] = field(default_factory=dict)
    instead: dict[str, str] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)

    @property
    def checkout(self) -> Path:
        return self.home / "kb"

    def environment(self) -> dict[str, str]:
        where = {
            "HOME": str(self.home),
            "KB_HOME": str(self.stack.home),
            "KB_ENGINE_PORT": self.stack.engine_url.rpartition(":")[2],
            "KB_MCP_PORT": self.stack.server_url.rpartition(":")[2],
            "PATH": f"{BIN}:/usr/local/bin:/usr/bin:/bin",
        }
        return clean_environment(**where | self.exported)

    def typed(self, command: str) -> str:
        """The command with the addresses of this engine and server, and the programs of this environment."""
        command = self.instead.get(command, command).replace(".venv/bin/", f"{BIN}/")
        command = command.replace("http://127.0.0.1:3000", self.stack.server_url)
        command = command.replace("http://127.0.0.1:8000", self.stack.engine_url)
        return re.sub(r"\b89\d\d\b", lambda port: str(self.ports.setdefault(port[0], free_port())), command)

    def run(self, command: str) -> str:
        typed = self.typed(command)
        if ALONE.fullmatch(typed):
            _, *words = self._in_shell(f"printf '%s\\0' {typed}").stdout.split("\0")[:-1]
            with contextlib.chdir(self.checkout):
                done: Ended | subprocess.CompletedProcess[str] = ended(*words, **self.environment())
        else:
            done = self._in_shell(typed)
        assert done.returncode == 0, f"{typed}\n{done.stdout}{done.stderr}"
        return done.stdout

    def _in_shell(self, line: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", line],
            cwd=self.checkout,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )

    def export(self, name: str, value: str) -> None:
        self.exported[name] = self.run(f"printf %s {value}")

    @contextmanager
    def serving(self, command: str) -> Iterator[None]:
        """Run a command that ends by interruption: active inside the block, ended after it."""
        typed = self.typed(command)
        environment = {**self.environment(), "PYTHONUNBUFFERED": "1"}
        process = Process.start("-c", f"cd {self.checkout} && exec {typed}", python="bash", **environment)
        try:
            if port := re.search(r"--port (\d+)", typed):
                wait_until_ready(f"http://127.0.0.1:{port[1]}/readyz", process)
            else:
                eventually(lambda: AT_WORK in process.output(), what=f"{AT_WORK!r} of {typed}")
            yield
        finally:
            process.stop()


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running_stack(tmp_path_factory.mktemp("home"), KB_EMBEDDER="hash", KB_AUDIT="true") as running:
        yield running


@pytest.fixture
def reader(stack: Stack, tmp_path: Path) -> Reader:
    return _reader(stack, tmp_path)


def _reader(stack: Stack, home: Path) -> Reader:
    reader = Reader(stack, home)
    reader.checkout.mkdir()
    for name in ("examples", "skills"):
        (reader.checkout / name).symlink_to(ROOT / name)
    return reader


def prepare_access(reader: Reader) -> None:
    """Use a separate file of keys, because with keys the shared engine would require one."""
    reader.exported["KB_KEYS"] = str(reader.home / "keys.json")


def prepare_backup(reader: Reader) -> None:
    """Check the restored base, which no engine uses."""
    for command in ("kb check", "kb check --repair"):
        reader.instead[command] = f"{command} --home ~/kb-new --embedder hash"


def prepare_import(reader: Reader) -> None:
    """Provide exports of other programs."""
    shutil.copytree(EXPORTS / "basic-memory", reader.home / "basic-memory")
    shutil.copy(
        next((EXPORTS / "mcp-memory-service").glob("*.json")), reader.checkout / "mcp-memories-export.json"
    )
    vault = reader.home / "vault"
    (vault / ".obsidian").mkdir(parents=True)
    (vault / "Bees.md").write_text("# Bees\n\nWorkers shiver to keep the cluster warm. #insects\n")
    reader.instead["kb import ~/kb-texts --home ~/kb-new"] = (
        "kb import ~/kb-texts --home ~/kb-new --embedder hash"
    )


def prepare_clients(reader: Reader) -> None:
    """Without a terminal the command cannot ask for confirmation."""
    for command in ("kb connect cursor", "kb connect cursor --undo"):
        reader.instead[command] = f"{command} --yes"


def prepare_evaluation(reader: Reader) -> None:
    """Provide a dataset of three abstracts, and questions about an existing document."""
    data = reader.checkout / "cranfield"
    (data / "qrels").mkdir(parents=True)
    texts = {"1": "bees keep warm by shivering", "2": "tides follow the moon", "3": "tea is picked in spring"}
    lines = [
        json.dumps({"_id": key, "title": f"Abstract {key}", "text": text}) for key, text in texts.items()
    ]
    (data / "corpus.jsonl").write_text("\n".join(lines) + "\n")
    queries = [json.dumps({"_id": key, "text": f"why do {text.split()[0]}"}) for key, text in texts.items()]
    (data / "queries.jsonl").write_text("\n".join(queries) + "\n")
    (data / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n1\t1\t1\n2\t2\t1\n3\t3\t1\n")
    (reader.checkout / "nothing.jsonl").write_text('{"question": "who signed the treaty of Tordesillas"}\n')
    reader.run("kb addnote 'Pensions are revalued in July' --title handbook --collection evaluation")
    reader.run("kb addnote 'The board grants it' --title 'Parental leave' --collection evaluation")
    asked = {"question": "how are pensions revalued", "document": "handbook"}
    (reader.checkout / "questions.jsonl").write_text(json.dumps(asked) + "\n")
    reader.exported["KB_EMBEDDER"] = "hash"
    first = "kb eval cranfield/ --queries odd --output before.jsonl"
    reader.instead[first] = f"{first} && cp before.jsonl after.jsonl"


def prepare_folders(reader: Reader) -> None:
    (reader.checkout / "notes").mkdir()
    (reader.checkout / "notes" / "tides.md").write_text("# Tides\n\nSpring tides come with a full moon.\n")


def prepare_history(reader: Reader) -> None:
    """Add a note with three versions; the page calls it 42."""
    added = json.loads(reader.run("kb addnote 'Bees fly at ten degrees' --collection history --json"))
    number = str(added["document_id"])
    for degrees in ("eleven", "twelve"):
        reader.run(f"kb updatenote {number} 'Bees fly at {degrees} degrees'")
    for command in commands_of("docs/history.md"):
        yes = " --yes" if command.startswith("kb rm") else ""
        reader.instead[command] = command.replace("42 3", "42 1").replace("42", number) + yes


def prepare_upgrade(reader: Reader) -> None:
    reader.run("kb addnote 'Upgrades want a copy first' --collection upgrade")


PREPARED: dict[str, Callable[[Reader], None]] = {
    "docs/access.md": prepare_access,
    "docs/backup.md": prepare_backup,
    "docs/clients.md": prepare_clients,
    "docs/evaluation.md": prepare_evaluation,
    "docs/folders.md": prepare_folders,
    "docs/history.md": prepare_history,
    "docs/import.md": prepare_import,
    "docs/upgrade.md": prepare_upgrade,
}
"""Preparations by page. `Reader.instead` maps a command of the page to its replacement."""


def expected_lines(page: str) -> set[str]:
    """The lines of the page's blocks of text, each behind the shell block that printed it."""
    blocks = blocks_of(page)
    printed = {
        line
        for command, output in pairwise(blocks)
        if command.language == "sh" and output.language == "text"
        if not NOT_RUN.get(page, {}).keys() & set(command.commands())
        for line in output.body.splitlines()
    }
    return {" ".join(line.split()) for line in printed}


def missing(lines: set[str], output: str) -> set[str]:
    """The lines that are not in the output; `…` stands for any text."""
    printed = [" ".join(line.split()) for line in output.splitlines()]
    patterns = {line: re.escape(line).replace("…", ".*") for line in lines}
    return {
        line for line, pattern in patterns.items() if not any(re.fullmatch(pattern, each) for each in printed)
    }


def follow(page: str, reader: Reader) -> str:
    """Run the commands of a page in order, and return their output."""
    if page in PREPARED:
        PREPARED[page](reader)
    printed = ""
    with ExitStack() as running:
        for command in commands_of(page):
            if command in NOT_RUN.get(page, {}):
                continue
            if exported := re.fullmatch(r"export (\w+)=(.*)", command):
                reader.export(*exported.groups())
            elif SERVES.match(command):
                running.enter_context(reader.serving(command))
            else:
                output = reader.run(command)
                assert FOUND_NOTHING not in output, command
                printed += f"{output}\n"
    return printed


@pytest.mark.parametrize("page", [page for page in FOLLOWED if page not in FIRST])
def test_the_page_can_be_followed_word_by_word(page: str, reader: Reader) -> None:
    follow(page, reader)


def test_the_first_pages_can_be_followed_one_after_another(tmp_path: Path) -> None:
    """On one base; the second page shows what it prints, and a note that it changes has its new text."""
    with running_stack(tmp_path / "base", KB_EMBEDDER="hash") as stack:
        reader = _reader(stack, tmp_path)
        printed = {page: follow(page, reader) for page in FIRST}
        found = json.loads(reader.run('kb search "how should answers be" --collection memory --json'))
    assert missing(expected_lines(FIRST[1]), printed[FIRST[1]]) == set()
    assert len(expected_lines(FIRST[1])) >= 12
    texts = {result["chunk"]["text"] for result in found["results"]}
    assert "The user prefers concise answers with sources" in texts
    assert "The user prefers concise answers" not in texts


def test_all_that_the_readme_runs_is_installed_by_make_run() -> None:
    """Commands after `make test` may need more."""
    [installed] = re.findall(r"\.run: .*\n.*\n\t\$\(call install,([^,]*),", (ROOT / "Makefile").read_text())
    first = takewhile(lambda each: each != "make test", commands_of("README.md"))
    names = {match[1] for each in first if (match := re.match(r"\S*kb (\w+)", each))}
    needed = {extra for each in commands() if each.name in names for extra in each.extras}
    assert {"connect", "search"} <= names
    assert "verify" not in names
    assert needed <= {*installed.split()}


def test_many_pages_are_followed() -> None:
    assert len(FOLLOWED) >= 12
    assert set(PREPARED) <= set(FOLLOWED)
