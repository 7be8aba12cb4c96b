"""`kb add` on ZIP archives and mailboxes: their members as files of a folder, and hostile archives."""

from __future__ import annotations

import stat
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kb_cli import archives as a
from kb_cli.add import Found, Result, expanded, walk
from kb_cli.exclusion import HOLDS_CREDENTIALS
from kb_config.shared import DEFAULT_UPLOAD_BYTES
from kb_contracts.api.formats import UnsupportedFormat, format_of
from tests.support.documents import encrypted
from tests.unit.cli.conftest import Kb
from tests.unit.cli.test_add import Scripted, adding, full

MAIL = (
    "From a@b.example Thu Jan  1 00:00:00 2026\n"
    "{head}From: a@b.example\nSubject: {subject}\n\nThe {subject} is blue.\n\n"
)


@pytest.fixture
def archives() -> Iterator[a.Archives]:
    with a.Archives() as archives:
        yield archives


def zipped(path: Path, members: dict[str, str | bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def declaring(path: Path, size: int, only: str = "") -> Path:
    """Return a ZIP file whose list of members declares this size of each member, or of one."""
    data = bytearray(path.read_bytes())
    at = data.find(b"PK\x01\x02")
    while at >= 0:
        if data.startswith(only.encode(), at + 46):
            data[at + 24 : at + 28] = struct.pack("<I", size)
        at = data.find(b"PK\x01\x02", at + 4)
    path.write_bytes(data)
    return path


def expand(archives: a.Archives, path: Path) -> tuple[list[Found], dict[str, tuple[str, str | None]]]:
    """Return the files of an archive, and outcome and reason of each member left out."""
    found, left_out = expanded(walk([path])[0], archives)
    return found, {member(one): (one.outcome, one.reason) for one in left_out}


def member(result: Result) -> str:
    return result.path.rpartition("!/")[2] if "!/" in result.path else Path(result.path).name


def content(file: Found) -> bytes:
    assert file.unpack is not None
    with file.unpack() as unpacked:
        return unpacked.read() or b""


def test_members_are_documents_with_the_archive_in_their_source_path(kb: Kb, tmp_path: Path) -> None:
    archive = zipped(
        tmp_path / "Set.ZIP", {"docs/quarry.md": "# Basalt", "plan.txt": "granite", "a.bin": b"\0"}
    )
    (tmp_path / "mails.mbox").write_text(MAIL.format(head="", subject="lantern"))
    results = {result["path"].rpartition("!/")[2]: result for result in kb.json("add", str(tmp_path))}
    assert {name: result["outcome"] for name, result in results.items()} == {
        "docs/quarry.md": "added", "plan.txt": "added", "a.bin": "skipped", "1.eml": "added",
    }  # fmt: skip
    document = kb.json("get", str(results["docs/quarry.md"]["document_id"]))
    assert (document["source_path"], document["filename"]) == (f"{archive}!/docs/quarry.md", "quarry.md")
    mail = kb.json("get", str(results["1.eml"]["document_id"]))
    assert (mail["source_path"], mail["title"]) == (f"{tmp_path}/mails.mbox!/1.eml", "lantern")
    zipped(archive, {"plan.txt": "marble"})
    assert [result["outcome"] for result in kb.json("add", str(archive))] == ["replaced"]


def test_the_rules_of_a_folder_apply_to_members(archives: a.Archives, tmp_path: Path) -> None:
    archive = zipped(
        tmp_path / "a.zip",
        {
            ".git/config.txt": "x", "__MACOSX/._a.txt": "x", "empty/": "", "a.txt": "a",
            "keys/id_rsa": "x", "b.txt": "-----BEGIN PRIVATE KEY", "in/b.zip": b"PK", "in/c.MBOX": "From ",
        },
    )  # fmt: skip
    found, left_out = expand(archives, archive)
    assert [(file.path.name, file.size, content(file)) for file in found] == [("a.txt", 1, b"a")]
    assert left_out == {
        "keys/id_rsa": ("skipped", HOLDS_CREDENTIALS),
        "b.txt": ("skipped", HOLDS_CREDENTIALS),
        "in/b.zip": ("skipped", a.NESTED),
        "in/c.MBOX": ("skipped", a.NESTED),
    }


@pytest.mark.parametrize(
    "name", ["../a.txt", "a/../../b.txt", "/etc/a.txt", "C:\\a.txt", "..\\a.txt", "//host/share/a.txt"]
)
def test_a_member_whose_name_leads_out_is_refused_by_name(
    archives: a.Archives, tmp_path: Path, name: str
) -> None:
    archive = zipped(tmp_path / "a.zip", {name: "x", "good.txt": "good"})
    found, left_out = expanded(walk([archive])[0], archives)
    assert [file.path.name for file in found] == ["good.txt"]
    assert [(one.path, one.outcome, one.reason) for one in left_out] == [
        (f"{archive}!/{name}", "failed", a.LEADS_OUT)
    ]


def test_links_in_an_archive_are_skipped(archives: a.Archives, tmp_path: Path) -> None:
    link = zipfile.ZipInfo("a.txt")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(link, "/etc/passwd")
    assert expand(archives, tmp_path / "a.zip") == ([], {"a.txt": ("skipped", a.LINK)})


def test_encrypted_members_are_refused_by_name(archives: a.Archives, tmp_path: Path) -> None:
    archive = zipped(tmp_path / "a.zip", {"a.txt": "a", "secret.txt": "b"})
    archive.write_bytes(encrypted(archive.read_bytes(), "secret.txt"))
    found, left_out = expand(archives, archive)
    assert [file.path.name for file in found] == ["a.txt"]
    assert left_out == {"secret.txt": ("failed", a.ENCRYPTED)}


def test_members_packed_by_other_methods_are_refused_by_name(archives: a.Archives, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("a.txt", "a")
    assert expand(archives, tmp_path / "a.zip") == ([], {"a.txt": ("failed", a.UNKNOWN_METHOD)})


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_second_member_of_a_name_is_refused_and_replaces_nothing(
    archives: a.Archives, tmp_path: Path
) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a.txt", "first")
        archive.writestr("a.txt", "second")
    (file,), left_out = expand(archives, tmp_path / "a.zip")
    assert content(file) == b"first"
    assert left_out == {"a.txt": ("failed", a.REPEATED)}


def test_a_member_above_the_upload_limit_is_refused_before_it_is_unpacked(
    archives: a.Archives, tmp_path: Path
) -> None:
    archive = declaring(zipped(tmp_path / "a.zip", {"a.txt": "a"}), DEFAULT_UPLOAD_BYTES + 1)
    (file,), _ = expand(archives, archive)
    with pytest.raises(OSError, match=a.TOO_LARGE):
        content(file)


def test_a_full_queue_unpacks_a_member_again_and_a_damaged_one_fails_alone(
    archives: a.Archives, tmp_path: Path
) -> None:
    archive = zipped(tmp_path / "a.zip", {"a.txt": "a", "b.txt": "b" * 100_000, "c.txt": "c"})
    found, _ = expand(archives, declaring(archive, 10_000, "b.txt"))
    client = Scripted(["1", full(), "2"])
    results = adding(client).run(found)
    assert client.log == ["send a.txt", "send c.txt", "wait 1", "send c.txt", "wait 2"]
    assert {member(one): one.reason for one in results}["b.txt"] == (
        "it is damaged: Bad CRC-32 for file 'b.txt'"
    )


def test_an_archive_above_the_total_is_refused_before_it_is_unpacked(
    archives: a.Archives, tmp_path: Path
) -> None:
    members: dict[str, str | bytes] = {f"{number}.txt": "a" for number in range(21)}
    archive = declaring(zipped(tmp_path / "a.zip", members), DEFAULT_UPLOAD_BYTES)
    assert expand(archives, archive) == ([], {"a.zip": ("failed", a.TOO_LARGE_IN_ALL)})


def test_a_member_that_holds_more_than_it_declares_is_damaged(archives: a.Archives, tmp_path: Path) -> None:
    archive = declaring(zipped(tmp_path / "a.zip", {"a.txt": "a" * 100_000}), 10_000)
    found, left_out = expand(archives, archive)
    assert left_out == {}
    with pytest.raises(OSError, match="it is damaged: Bad CRC-32"):
        content(found[0])


def test_a_long_list_of_members_is_refused(
    archives: a.Archives, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = zipped(tmp_path / "a.zip", {f"{number}.txt": "" for number in range(4)})
    monkeypatch.setattr(a, "MOST_MEMBERS", 3)
    assert expand(archives, archive) == ([], {"a.zip": ("failed", a.TOO_MANY)})
    mails = tmp_path / "a.mbox"
    mails.write_text(MAIL.format(head="", subject="x") * 4)
    assert expand(archives, mails) == ([], {"a.mbox": ("failed", a.TOO_MANY)})


def test_a_list_of_members_that_would_fill_the_memory_is_not_read(
    archives: a.Archives, tmp_path: Path
) -> None:
    size = 5 * 1024 * 1024
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 1, 1, size, 0, 0)
    with (tmp_path / "a.zip").open("wb") as archive:
        archive.seek(size)
        archive.write(end)
    assert expand(archives, tmp_path / "a.zip") == ([], {"a.zip": ("failed", a.TOO_MANY)})


@pytest.mark.parametrize("data", [b"", b"no archive", b"PK\x05\x06" + b"\xff" * 18])
def test_a_file_that_is_no_archive_is_a_failure(archives: a.Archives, tmp_path: Path, data: bytes) -> None:
    for name in ("a.zip", "a.mbox"):
        (tmp_path / name).write_bytes(data)
        found, left_out = expand(archives, tmp_path / name)
        assert (found, left_out[name][0]) == ([], "failed")


def test_damaged_members_fail_by_themselves(archives: a.Archives, tmp_path: Path) -> None:
    archive = zipped(tmp_path / "a.zip", {"a.txt": "a" * 50, "b.txt": "b"})
    data = bytearray(archive.read_bytes())
    data[:4] = b"XXXX"
    archive.write_bytes(data)
    found, left_out = expand(archives, archive)
    assert [content(file) for file in found] == [b"b"]
    assert left_out == {"a.txt": ("failed", "it is damaged: Bad magic number for file header")}


def test_mails_are_named_by_their_message_id_or_number(archives: a.Archives, tmp_path: Path) -> None:
    heads = ("<1+a=b@mail.example>", "<../../a@b>", "<1+a=b@mail.example>", f"<{'x' * 300}@b>", "é@b")
    mails = [MAIL.format(head=f"Message-ID: {each}\n", subject="granite") for each in heads]
    (tmp_path / "a.mbox").write_text("".join(mails))
    found, left_out = expand(archives, tmp_path / "a.mbox")
    assert [file.path.name for file in found] == [
        "1+a=b@mail.example.eml",
        "2.eml",
        "3.eml",
        "4.eml",
        "5.eml",
    ]
    assert not left_out
    assert (
        content(found[1])
        == b"Message-ID: <../../a@b>\nFrom: a@b.example\nSubject: granite\n\nThe granite is blue.\n"
    )
    assert all(file.size == len(content(file)) for file in found)


def test_a_mailbox_that_is_one_line_is_not_read_into_memory(archives: a.Archives, tmp_path: Path) -> None:
    (tmp_path / "a.mbox").write_bytes(b"From " + b"x" * 2 * 1024 * 1024)
    found, left_out = expand(archives, tmp_path / "a.mbox")
    assert (found, left_out["a.mbox"][0]) == ([], "failed")


def test_one_archive_is_open_at_a_time(archives: a.Archives, tmp_path: Path) -> None:
    for name in "ab":
        zipped(tmp_path / f"{name}.zip", {"1.txt": name, "2.txt": name})
    found, _ = expanded(walk([tmp_path])[0], archives)
    assert [content(file) for file in found] == [b"a", b"a", b"b", b"b"]
    assert len([link for link in Path("/proc/self/fd").iterdir() if link.resolve().suffix == ".zip"]) == 1


@pytest.mark.parametrize("name", ["a.zip", "b.MBOX"])
def test_an_archive_is_refused_in_words_that_name_kb_add(name: str) -> None:
    with pytest.raises(UnsupportedFormat, match="run `kb add` on it"):
        format_of(name)
