"""`kb add` with failures that a real engine does not give on demand: a full queue, a lost connection."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import cast

import msgspec
import pytest

from kb_cli.add import Adding, Found, Outcome, Progress, Result, status_of, walk
from kb_cli.client import EngineClient, QueueFull
from kb_cli.exclusion import HOLDS_CREDENTIALS, LEADS_OUT
from kb_cli.output import CliError, Exit, Output, Unreachable
from kb_contracts.api import models as m
from kb_contracts.api.operations import GET_JOB
from tests.unit.cli.test_client import JOB
from tests.unit.cli.test_output import Terminal


@dataclass
class Scripted:
    """An engine client that answers submissions from a list: a job's id, or an error."""

    answers: list[str | CliError]
    log: list[str] = field(default_factory=list)
    fields: list[m.FileFields] = field(default_factory=list)
    encodings: list[str] = field(default_factory=list)

    def send_file(
        self, filename: str, content: io.BufferedReader, fields: m.FileFields, *, as_text: bool, encoding: str
    ) -> m.Job:
        assert not as_text
        self.fields.append(fields)
        self.encodings.append(encoding)
        content.read()
        answer = self.answers.pop(0)
        self.log.append(f"send {filename}")
        if isinstance(answer, CliError):
            raise answer
        return _job(answer, "queued")

    def wait_for_job(self, job_id: str, *, on_job: Callable[[m.Job], None] | None = None) -> m.Job:
        """Return a cancelled job, so that no document is requested."""
        self.log.append(f"wait {job_id}")
        if on_job is not None:
            on_job(msgspec.structs.replace(_job(job_id, "running"), progress=0.5))
        return _job(job_id, "cancelled")

    def call(self, operation: object, *, path: dict[str, str]) -> m.Job:
        """Return an ended job without waiting."""
        assert operation is GET_JOB
        self.log.append(f"look {path['job_id']}")
        return _job(path["job_id"], "cancelled")


def _job(job_id: str, status: m.JobStatus) -> m.Job:
    return msgspec.structs.replace(JOB, id=job_id, status=status)


def adding(client: Scripted) -> Adding:
    silent = Progress(Output(as_json=True, stdout=io.StringIO()))
    return Adding(cast("EngineClient", client), ["collection:documents"], silent)


@pytest.fixture
def files(tmp_path: Path) -> list[Found]:
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.txt").write_text(name)
    return walk([tmp_path])[0]


def test_a_file_is_known_by_its_real_path(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.txt").write_text("a")
    (found,), _ = walk([tmp_path / "sub" / ".." / "a.txt"])
    assert adding(Scripted([]))._fields(found).source_path == str((tmp_path / "a.txt").resolve())


def test_a_file_of_an_unknown_kind_in_a_folder_is_no_failure(tmp_path: Path) -> None:
    """It is not sent, because a large one would be refused for its size."""
    (tmp_path / "disk.img").write_bytes(b"")
    (tmp_path / "a.txt").write_text("a")
    client = Scripted(["1"])
    results = adding(client).run(walk([tmp_path])[0])
    assert [(Path(one.path).name, one.outcome) for one in results if one.outcome == "skipped"] == [
        ("disk.img", "skipped")
    ]
    assert client.log == ["send a.txt", "wait 1"]


def test_ocr_is_forced_where_there_is_something_to_look_at(tmp_path: Path) -> None:
    for name in ("a.PDF", "b.jpeg", "c.txt", "d.docx"):
        (tmp_path / name).write_text(name)
    client = Scripted(["1", "2", "3", "4"])
    run = adding(client)
    run.force_ocr = True
    run.wait = False
    results = run.run(walk([tmp_path])[0])
    assert [fields.force_ocr for fields in client.fields] == [True, True, False, False]
    remark = "OCR does not apply to it: its text is read directly"
    assert [result.reason for result in results] == [None, None, remark, remark]


def full() -> QueueFull:
    return QueueFull("Too many jobs wait.")


def test_results_appear_while_other_files_are_sent(files: list[Found]) -> None:
    client = Scripted(["1", "2", "3"])
    told = adding(client)
    told.clock = count().__next__
    told.run(files)
    assert client.log == ["send a.txt", "send b.txt", "look 1", "look 2", "send c.txt", "look 3"]


def test_the_bar_moves_while_one_file_is_read(files: list[Found], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    progress = Progress(Output(stdout=terminal))
    progress.began(1, 1)
    with progress:
        assert progress.on_job is not None
        progress.on_job(msgspec.structs.replace(_job("1", "running"), progress=0.5))
    assert " 50 %" in terminal.getvalue()


def test_files_that_are_passed_over_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    with Progress(Output(stdout=terminal)) as progress:
        progress.began(4, 4)
        for name in ("one.xyz", "two.xyz"):
            progress.skipped(name, ".xyz", "", 1)
        progress.sent(1)
        progress.ended(Result("a.md", "added", 1))
    text = terminal.getvalue()
    assert (text.count(" 50 %"), "one.xyz" in text, "two.xyz" in text) == (2, True, True)


def test_many_files_are_a_summary_and_each_unknown_kind_is_one_line(tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / f"{number}.txt").write_text(str(number))
        (tmp_path / f"{number}.xyz").touch()
    (tmp_path / "core").write_bytes(b"ELF\0")
    pipe = io.StringIO()
    with Progress(Output(stdout=pipe)) as progress:
        found, _ = walk([tmp_path])
        progress.began(len(found), 0)
        for file in found:
            if file.path.suffix == ".txt" and file.path.stem != "7":
                progress.ended(Result(file.label, "added", 1))
        progress.ended(Result("7.txt", "failed", reason="broken"))
        client = Scripted([])
        results = Adding(cast("EngineClient", client), ["collection:documents"], progress).run(
            [file for file in found if file.path.suffix != ".txt"]
        )
    assert len(results) == 31
    assert pipe.getvalue().splitlines() == [
        "failed\t7.txt\tbroken",
        f"skipped\t{tmp_path / 'core'}\twithout an extension there is no format that kb reads",
        "skipped\t30 files .xyz\t.xyz is no format that kb reads; kb add --as-text reads it as text",
    ]


def test_ctrl_c_prints_the_number_of_added_files(files: list[Found]) -> None:
    class Interrupted(Scripted):
        def wait_for_job(self, job_id: str, *, on_job: Callable[[m.Job], None] | None = None) -> m.Job:
            if job_id == "2":
                raise KeyboardInterrupt
            return super().wait_for_job(job_id, on_job=on_job)

    stopped = adding(Interrupted(["1", "2", "3"]))
    stopped.progress.began(len(files), 3)
    with pytest.raises(CliError) as ended:
        stopped.run(files)
    assert ended.value.status is Exit.INTERRUPTED
    assert ended.value.message == (
        "interrupted: 0 of 3 files added, 2 more sent and in progress; the same command continues"
    )


def test_when_the_queue_is_full_the_oldest_of_our_jobs_is_awaited(files: list[Found]) -> None:
    """Then the same file is sent again from its beginning, so that no file is lost."""
    client = Scripted(["1", full(), "2", full(), "3"])
    results = adding(client).run(files)
    assert client.log == [
        "send a.txt", "send b.txt", "wait 1", "send b.txt", "send c.txt", "wait 2", "send c.txt", "wait 3",
    ]  # fmt: skip
    assert [result.job_id for result in results] == ["1", "2", "3"]


def test_a_queue_full_of_other_peoples_jobs_fails_the_file(files: list[Found]) -> None:
    """No own job can be awaited; the remaining files are still tried."""
    results = adding(Scripted([full(), "2", "3"])).run(files)
    assert [result.outcome for result in results] == ["failed", "failed", "failed"]
    assert results[0].reason == "Too many jobs wait."


def test_an_engine_that_goes_away_ends_the_run(files: list[Found]) -> None:
    """The remaining files would fail in the same way, each after its own time-out."""
    gone = Unreachable("gone")
    client = Scripted(["1", gone])
    with pytest.raises(CliError, match="gone"):
        adding(client).run(files)
    assert client.log == ["send a.txt", "send b.txt"]


def test_a_file_that_vanishes_fails_alone(files: list[Found]) -> None:
    files[1].path.unlink()
    results = adding(Scripted(["1", "2"])).run(files)
    assert {Path(result.path).name: result.reason for result in results}[
        "b.txt"
    ] == "No such file or directory"
    assert len(results) == 3


@pytest.mark.parametrize(
    ("outcomes", "status"),
    [
        ([], Exit.OK),
        (["added", "already there", "skipped"], Exit.OK),
        (["skipped"], Exit.OK),
        (["failed", "skipped"], Exit.FAILED),
        (["empty"], Exit.FAILED),
        (["added", "failed"], Exit.PARTLY),
        (["submitted", "empty"], Exit.PARTLY),
    ],
)
def test_the_exit_status_tells_all_some_and_none(outcomes: list[Outcome], status: Exit) -> None:
    assert status_of([Result("path", outcome) for outcome in outcomes]) is status


def test_a_file_named_twice_is_sent_once(tmp_path: Path) -> None:
    (tmp_path / "a.txt").touch()
    (tmp_path / "link.txt").symlink_to(tmp_path / "a.txt")
    found, _ = walk([tmp_path / "a.txt", tmp_path, tmp_path / "a.txt"])
    assert [(file.path.name, file.named) for file in found] == [("a.txt", True)]


def test_a_named_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.txt")
    assert walk([tmp_path]) == ([], [])
    with pytest.raises(CliError, match="is a pipe or a device"):
        walk([tmp_path / "pipe.txt"])


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("id_rsa", "x"),
        ("server.PEM", "x"),
        ("credentials", "x"),
        ("credentials.json", "{}"),
        ("prod.env", "A=b"),
        ("account.json", '{"type": "x", "private_key": "-----BEGIN PRIVATE KEY-----"}'),
        ("notes.txt", "-----BEGIN OPENSSH PRIVATE KEY-----\nb3Bl"),
        ("notes.md", "\n-----BEGIN PRIVATE KEY-----\nMII"),
        ("k", "PuTTY-User-Key-File-3: ssh-ed25519"),
    ],
)
def test_credentials_in_a_folder_are_left_out_unless_they_are_named(
    tmp_path: Path, name: str, content: str
) -> None:
    file = tmp_path / name
    file.write_text(content)
    (tmp_path / "guide.md").write_text("Paste `-----BEGIN PRIVATE KEY-----` here; see environment.")
    for harmless in ("credentials.md", "credentials.py", "env.py", "env.md"):
        (tmp_path / harmless).write_text("prose")
    found, left_out = walk([tmp_path])
    assert {each.path.name for each in found} == {
        "credentials.md",
        "credentials.py",
        "env.md",
        "env.py",
        "guide.md",
    }
    assert left_out == [Result(str(file), "skipped", reason=HOLDS_CREDENTIALS)]
    assert [each.path for each in walk([file])[0]] == [file]


def test_a_link_out_of_a_folder_is_left_out_unless_it_is_named(tmp_path: Path) -> None:
    """The folder itself may be a link, because the user has named it."""
    vault, secret = tmp_path / "vault", tmp_path / "secret.md"
    vault.mkdir()
    (vault / "a.md").write_text("a")
    secret.write_text("The key of the house")
    (vault / "inside.md").symlink_to(vault / "a.md")
    (vault / "out.md").symlink_to(secret)
    (tmp_path / "link").symlink_to(vault)
    left_out = Result(str(tmp_path / "link" / "out.md"), "skipped", reason=LEADS_OUT)
    found, passed_over = walk([tmp_path / "link"])
    assert ([file.path.name for file in found], passed_over) == (["a.md"], [left_out])
    found, passed_over = walk([vault / "out.md"])
    assert ([file.source for file in found], passed_over) == ([str(secret.resolve())], [])


def test_a_path_too_long_for_the_engine_is_left_out_rather_than_cut() -> None:
    """The truncated path could be another file's."""
    long = Found(Path("x"), 0, True, "/" + "x" * 1_000)
    assert adding(Scripted([]))._fields(long).source_path is None


FRONT_MATTER = [
    pytest.param(
        '---\ntags: [rope, "#wind", bridges/sway]\naliases:\n  - Swaying\ndate: 2026-01-02\n---\n',
        ["rope", "wind"],
        {"aliases": ["Swaying"], "created": "2026-01-02", "tags_left_out": ["bridges/sway"]},
        ["tags left out: bridges/sway"],
        id="Obsidian",
    ),
    pytest.param(
        '+++\ntags = ["rope", "steel wire"]\naliases = ["/old/"]\n'
        "date = 2026-01-02T03:04:05Z\nlastmod = 2026-02-03\n+++\n",
        ["rope", "steel wire"],
        {"aliases": ["/old/"], "created": "2026-01-02T03:04:05+00:00", "updated": "2026-02-03"},
        [],
        id="Hugo",
    ),
    pytest.param(
        "---\ntags:\n  - label: Rope\n    permalink: /r\n  - wire\nlast_update:\n  date: 2026-02-03\n---\n",
        ["Rope", "wire"],
        {"updated": "2026-02-03"},
        [],
        id="Docusaurus",
    ),
    pytest.param(
        "---\ntags: rope wire rope\ndate: 2026-01-02 03:04:05 +0100\n---\n",
        ["rope", "wire"],
        {"created": "2026-01-02 03:04:05 +0100"},
        [],
        id="Jekyll",
    ),
    pytest.param("---\ntags: [1, {a: b}, '']\ndate: soon\nalias: ~\n---\n", ["1"], {}, [], id="no texts"),
    pytest.param(
        f"---\ntags: {[f't{n}' for n in range(70)]}\n---\n",
        [f"t{n}" for n in range(63)],
        {"tags_left_out": [f"t{n}" for n in range(63, 70)]},
        ["tags left out: t63, t64, t65, t66, t67, t68, t69"],
        id="too many",
    ),
    pytest.param("---\ntags: [a\n---\n", [], {}, ["its front matter is not read"], id="no YAML"),
    pytest.param("---\ntags: [K\udcf6ln]\n---\n", [], {}, ["it has invalid characters"], id="no UTF-8"),
    pytest.param(
        '+++\ntags = ["K\udcf6ln"]\n+++\n', [], {}, ["it has invalid characters"], id="no UTF-8, TOML"
    ),
    pytest.param('+++\naliases = ["\\u0000"]\n+++\n', [], {}, ["it has invalid characters"], id="NUL"),
    pytest.param("# A title\ntags: rope\n", [], {}, [], id="none"),
]


@pytest.mark.parametrize(("text", "tags", "metadata", "notes"), FRONT_MATTER)
def test_tags_aliases_and_dates_of_front_matter_go_with_a_markdown_file(
    tmp_path: Path, text: str, tags: list[str], metadata: dict[str, object], notes: list[str]
) -> None:
    path = tmp_path / "sway.md"
    path.write_bytes(text.encode(errors="surrogateescape"))
    client = Scripted(["job"])
    (result,) = adding(client).run(walk([path])[0])
    (fields,) = client.fields
    assert (fields.tags, fields.metadata, fields.title) == (["collection:documents", *tags], metadata, None)
    assert all(note in (result.reason or "") for note in notes)
    (submitted,) = replace(adding(Scripted(["job"])), wait=False).run(walk([path])[0])
    assert (submitted.reason is None) == (not notes)


def test_a_declared_encoding_is_sent_with_each_file(files: list[Found]) -> None:
    client = Scripted(["1", "2", "3"])
    replace(adding(client), encoding="windows-1252").run(files)
    assert client.encodings == ["windows-1252"] * 3


@pytest.mark.parametrize(("encoding", "label"), [("cp1252", "windows-1252"), ("utf-16", "")])
def test_front_matter_is_read_in_the_encoding_of_its_file(tmp_path: Path, encoding: str, label: str) -> None:
    path = tmp_path / "a.md"
    path.write_text("---\ntags: [Köln]\n---\n", encoding)
    client = Scripted(["job"])
    replace(adding(client), encoding=label).run(walk([path])[0])
    assert client.fields[0].tags == ["collection:documents", "Köln"]
