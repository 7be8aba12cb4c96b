"""A collection synchronized with sources other than folders, against a real engine."""

from __future__ import annotations

import base64
import gzip
import json
import random
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from kb_cli.output import Exit
from kb_cli.sync.planning import plan
from kb_cli.sync.repository import Repository
from kb_cli.sync.source import Entry, Remote, Unavailable
from kb_cli.web import Fetched
from tests.unit.cli.conftest import Kb, Web


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder of its own, for the cache."""
    monkeypatch.setenv("KB_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def shelf(tmp_path: Path) -> str:
    """A collection of its own."""
    return tmp_path.name.replace("_", "-")[:40]


def outcomes(results: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Return the names of files by outcome."""
    found: dict[str, list[str]] = {}
    for result in results:
        found.setdefault(result["outcome"], []).append(result["path"].rpartition("/")[2])
    return {outcome: sorted(names) for outcome, names in found.items()}


def held(kb: Kb, shelf: str) -> dict[str, int]:
    """Return the numbers of the documents by the names of their sources."""
    documents = kb.json("get", "--collection", shelf)["documents"]
    return {path.rpartition("/")[2]: one["id"] for one in documents for path in one["source_paths"]}


class Listed(Remote):
    """A source with these entries; an exception ends the listing."""

    def __init__(self, state: Path, rows: list[Entry | Exception]) -> None:
        super().__init__("test://x", "test://x/", state)
        self._rows = rows

    def entries(self) -> Iterator[Entry]:
        for row in self._rows:
            if isinstance(row, Exception):
                raise row
            yield row._replace(source=self.prefix + row.source)

    def fetched(self, source: str, folder: Path, conditions: Mapping[str, str]) -> Fetched:
        raise Unavailable("it is never read")


@pytest.mark.parametrize(
    "key",
    [
        "../a.md",
        "a/../../b.md",
        "./a.md",
        "a//b.md",
        "/a.md",
        "a\nb.md",
        "a\x1b[2Jb.md",
        "\udcff.md",
        "x" * 1_000 + ".md",
    ],
)
def test_a_key_that_is_no_path_is_unreadable_and_its_document_stays(tmp_path: Path, key: str) -> None:
    listing = Listed(tmp_path / "state", [Entry(key), Entry("good.md"), Entry("good.md")]).listed()
    assert list(listing.files) == ["test://x/good.md"]
    assert list(listing.unreadable) == [f"test://x/{key}"]
    assert listing.is_complete
    assert listing.may_hold(f"test://x/{key}")


def test_hidden_unsupported_and_secret_files_of_a_source_are_left_out(tmp_path: Path) -> None:
    rows: list[Entry | Exception] = [
        Entry(key) for key in (".git/a.md", "a/.b.md", "a.exe", "id_rsa", "c.md")
    ]
    listing = Listed(tmp_path / "state", [*rows, Entry("large.md", 2**40)]).listed()
    assert (list(listing.files), listing.skipped) == (["test://x/c.md"], 1)
    assert list(listing.left_out) == ["test://x/id_rsa"]
    assert list(listing.unreadable) == ["test://x/large.md"]


def test_a_listing_that_is_cut_short_removes_nothing(tmp_path: Path, kb: Kb, shelf: str) -> None:
    kb.note("kept", "--collection", shelf, "--source-path", "test://x/old.md")
    documents = _documents(kb, shelf)
    whole = Listed(tmp_path / "state", [Entry("a.md")])
    assert len(plan(whole.listed(), documents, whole.prefix, whole.owns).removed) == 1
    cut = Listed(tmp_path / "state", [Entry("a.md"), Unavailable("page 2 answers 500")])
    planned = plan(cut.listed(), documents, cut.prefix, cut.owns)
    assert (planned.added, planned.removed) == (["test://x/a.md"], [])
    assert list(cut.listed().unreadable) == ["test://x"]


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(
        ["git", "-c", "user.name=a", "-c", "user.email=a@b.example", "-C", str(folder), *arguments],
        check=True,
        capture_output=True,
    )


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with two files, and a hook that must never run."""
    folder = tmp_path / "repository"
    (folder / "docs").mkdir(parents=True)
    git(folder, "init", "--quiet", "--initial-branch=main")
    (folder / "a.md").write_text("granite quarry")
    (folder / "docs" / "b.md").write_text("basalt columns")
    commit(folder)
    return folder


def commit(folder: Path) -> None:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message=x")


@pytest.mark.process
def test_a_branch_of_a_repository_is_followed(kb: Kb, shelf: str, repository: Path, home: Path) -> None:
    """Files that are not committed do not count; a renamed file keeps its document."""

    def sync(*more: str) -> dict[str, list[str]]:
        return outcomes(kb.json("sync", str(repository), "--ref", "main", "--collection", shelf, *more))

    (repository / "draft.md").write_text("a draft")
    assert sync() == {"added": ["a.md", "b.md"]}
    assert (home / "sync").stat().st_mode & 0o777 == 0o700
    before = held(kb, shelf)
    assert sync() == {}
    git(repository, "mv", "a.md", "c.md")
    (repository / "docs" / "b.md").write_text("basalt pillars")
    (repository / "pointer.md").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    (repository / "out.md").symlink_to("/etc/passwd")
    commit(repository)
    assert sync() == {
        "added": ["draft.md"],
        "already there": ["c.md"],
        "removed": ["a.md"],
        "replaced": ["b.md"],
        "skipped": ["pointer.md"],
    }
    assert held(kb, shelf)["c.md"] == before["a.md"]
    for cache in (home / "sync").glob("*.jsonl"):
        cache.write_bytes(b'["torn')
    out = kb("sync", str(repository), "--ref", "main", "--collection", shelf)[1]
    assert out.splitlines()[-1] == "1 skipped, 3 unchanged"
    git(repository, "rm", "--quiet", "-r", ".")
    git(repository, "commit", "--quiet", "--message=x")
    assert kb("sync", str(repository), "--ref", "main", "--collection", shelf)[0] == Exit.USAGE
    assert len(sync("--yes")["removed"]) == 3


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["git+ext::sh -c id"], "git+https"),
        (["git+http://example.org/a.git"], "git+https"),
        (["git+http://user:hunter2@example.org/a.git"], "--credentials"),
        (["git+https://user:hunter2@example.org/a.git"], "--credentials"),
        (["git+ssh://git:hunter2@example.org/a.git"], "--credentials"),
        (["webdavs://user:hunter2@example.org/a"], "--credentials"),
        (["https://user:hunter2@example.org/a.xml"], "--credentials"),
        (["https://example.org:hunter2/a.xml"], "host or port"),
        (["git+https://example.org:99999/a.git"], "host or port"),
        (["webdavs://[::1/a"], "host or port"),
        (["http:///a.xml"], "no http"),
        (["webdavs://999.1.1.1/a"], "no URL"),
        (["git+https://a%2eexample.org/a.git"], "names no host"),
        (["git+https://example.org./a.git"], "names no host"),
        (["s3://a", "--ref=main"], "--ref"),
        (["ftp://example.org/a"], "addresses are http(s)://"),
        (["s3://a", "--credentials=a.json"], "endpoint_url"),
        (["git+https://example.org/a.git", "--credentials=a.json"], "user, password"),
        ([".", "--ref=main", "--credentials=b.json"], "over https"),
        (["git+ssh://-oProxyCommand=id/a.git"], "names no host"),
        ([".", "--ref=-x"], "no branch"),
        ([".", "--ref=a:refs/heads/b"], "no branch"),
        ([".", "--ref=main\n"], "no branch"),
        (["https://example.org/", "--ref=main"], "--ref"),
    ],
)
def test_an_address_that_is_misleading_or_has_a_password_is_refused(
    kb: Kb, tmp_path: Path, arguments: list[str], reason: str
) -> None:
    (tmp_path / "a.json").write_text('{"username": "hunter2"}')
    (tmp_path / "b.json").write_text('{"user": "hunter2"}')
    status, _, error = kb("sync", *arguments)
    assert status == Exit.USAGE
    assert reason in error
    assert "hunter2" not in error


@pytest.mark.process
def test_a_repository_that_cannot_be_reached_removes_nothing(
    kb: Kb, shelf: str, repository: Path, tmp_path: Path
) -> None:
    place = f"git+file://{repository}"
    kb.json("sync", place, "--collection", shelf)
    repository.rename(tmp_path / "away")
    status, out, _ = kb("sync", place, "--collection", shelf)
    assert status == Exit.FAILED
    assert "so nothing is removed" in out
    assert len(held(kb, shelf)) == 2


@pytest.mark.process
def test_runs_for_two_refs_of_a_repository_do_not_mix(
    kb: Kb, shelf: str, repository: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fetched ref is changed before each listing, as by another run."""
    program = home / "bin" / "git"
    program.parent.mkdir(parents=True)
    change = 'case "$*" in *ls-tree*) %s --git-dir "$2" update-ref -d refs/kb/tip;; esac\nexec %s "$@"\n'
    program.write_text("#!/bin/sh\n" + change.replace("%s", str(shutil.which("git"))))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    monkeypatch.chdir(repository)
    for place in (".", str(repository)):
        kb.json("sync", place, "--ref", "main", "--collection", shelf)
    assert len(held(kb, shelf)) == 2
    assert len(list((home / "sync").glob("*.git"))) == 1


@pytest.mark.parametrize("bound", ["MOST_PACKED", "MOST_LISTED"])
def test_a_repository_without_end_is_left(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    for number in range(40):
        (repository / f"{number}.md").write_text(random.Random(number).randbytes(40).hex())
    commit(repository)
    monkeypatch.setattr(f"kb_cli.sync.repository.{bound}", 1 << 10)
    source = Repository(str(repository), "main", tmp_path, private=False, credentials={})
    listing = source.listed()
    assert not listing.is_complete
    assert "it has more than 0 MiB" in listing.unreadable[source.name]


def test_credentials_reach_git_by_its_environment_alone(
    kb: Kb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program in the place of git notes how it was called: no server of https is at hand."""
    program, noted = tmp_path / "bin" / "git", tmp_path / "noted"
    program.parent.mkdir()
    script = '#!/bin/sh\necho "$*" >>{0}\nenv >{0}.env\necho git version {1}\nexec mkdir -p "${{5:-{0}.d}}"\n'
    program.write_text(script.format(noted, "2.36.9"))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    (tmp_path / "file.json").write_text('{"user": "me", "password": "secret"}')
    place = ("git+https://127.0.0.1:9/a.git", "--private", "--credentials", str(tmp_path / "file.json"))
    assert "git 2.37 or later" in kb("sync", *place)[2]
    program.write_text(script.format(noted, "2.37.0"))
    kb("sync", *place)
    header = base64.b64encode(b"me:secret").decode()
    environment = Path(f"{noted}.env").read_text()
    assert f"Basic {header}" in environment
    assert "HOME=/dev/null\n" in environment
    assert "fetch" in noted.read_text()
    assert not {header, "secret"} & set(noted.read_text().split())


def test_a_repository_on_a_private_address_is_not_fetched(kb: Kb, shelf: str) -> None:
    out = kb("sync", "git+https://127.0.0.1:9/a.git", "--collection", shelf)[1]
    assert "127.0.0.1 is not a public address" in out


def sitemap(*urls: str, changed: str = "", of: str = "url") -> bytes:
    rows = "".join(f"<{of}><loc>{url}</loc><lastmod>{changed}</lastmod></{of}>" for url in urls)
    root = "urlset" if of == "url" else "sitemapindex"
    return f'<{root} xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">{rows}</{root}>'.encode()


def test_the_pages_of_a_sitemap_are_followed(kb: Kb, shelf: str, web: str) -> None:
    """Unchanged pages are not sent by the site; pages from elsewhere stay."""

    def sync() -> dict[str, list[str]]:
        Web.sent.clear()
        status, out, _ = kb("sync", f"{web}/index.xml", "--collection", shelf, "--json")
        found = outcomes(json.loads(out))
        assert status == (
            Exit.FAILED if set(found) == {"failed"} else Exit.PARTLY if "failed" in found else Exit.OK
        )
        return found

    Web.pages = {
        "/index.xml": sitemap(f"{web}/1.xml.gz", f"{web}/index.xml", "http://127.0.0.2/x.xml", of="sitemap"),
        "/1.xml.gz": gzip.compress(
            sitemap(f"{web}/a", f"{web}/b#top", "http://127.0.0.2/secret", "file:///etc/passwd")
        ),
        "/a": b"granite quarry",
        "/b": b"basalt columns",
        "/own": b"slate roofs",
    }
    kb.json("add", f"{web}/own", "--private", "--collection", shelf)
    assert sync() == {"added": ["a", "b"]}
    Web.pages["/copy-of-b"] = Web.pages["/b"]
    kb.json("add", f"{web}/copy-of-b", "--private", "--collection", shelf)
    assert sync() == {}
    assert Web.sent == ["/index.xml", "/1.xml.gz"]
    Web.pages["/a"] = b"marble quarry"
    Web.pages["/b"] = 500
    assert sync() == {"replaced": ["a"], "failed": ["b"]}
    Web.pages["/1.xml.gz"] = gzip.compress(sitemap(f"{web}/a"))[:-20]
    assert sync() == {"failed": ["index.xml"]}
    Web.pages["/1.xml.gz"] = sitemap(f"{web}/a", changed="2026-01-02T03:04:05Z")
    assert sync() == {"removed": ["b"]}
    assert sync() == {}
    assert Web.sent == ["/index.xml", "/1.xml.gz"]
    assert set(held(kb, shelf)) == {"a", "copy-of-b", "own"}


def test_a_page_counts_as_unchanged_only_after_it_was_sent(kb: Kb, shelf: str, web: str) -> None:
    Web.pages = {"/list": sitemap(f"{web}/a"), "/a": 304}
    place = ("sync", f"{web}/list", "--collection", shelf)
    assert kb(*place)[0] == Exit.FAILED
    Web.pages["/a"] = b"granite quarry"
    assert kb(*place)[1].endswith("1 added, 0 unchanged\n")
    assert kb(*place)[1] == "1 unchanged\n"


def test_entries_that_leave_a_feed_stay(kb: Kb, shelf: str, web: str) -> None:
    atom = (
        "<feed xmlns='http://www.w3.org/2005/Atom'><link href='{0}/'/><entry><link rel='self' href='{0}/x'/>"
    )
    atom += "<link href='{0}/{1}'/><updated>2026-01-02T03:04:05Z</updated></entry></feed>"
    rss = "<rss><channel><link>{0}/</link><item><link>{0}/{1}</link></item></channel></rss>"
    for name, form in (("a", atom), ("b", rss)):
        Web.pages |= {"/feed": form.format(web, name).encode(), f"/{name}": f"text of {name}".encode()}
        results = kb.json("sync", f"{web}/feed", "--collection", shelf)
        assert outcomes(results) == {"added": [name]}
    Web.pages["/feed"] = b"<feed/>"
    assert kb.json("sync", f"{web}/feed", "--collection", shelf, "--yes") == []
    assert set(held(kb, shelf)) == {"a", "b"}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"<html><a href='/a'>a</a></html>", "neither a sitemap nor a feed"),
        (sitemap("http://127.0.0.1/a")[:-9], "not a complete sitemap"),
        (b"<!DOCTYPE a [<!ENTITY b 'c'>]><urlset/>", "document type"),
        (gzip.compress(b"<urlset>" + b" " * (2 << 20), 1), "more than 1 MiB"),
        (sitemap("http://other.example/a"), "--any-site"),
        (sitemap(*(f"http://127.0.0.1/{number}" for number in range(2_000)), of="sitemap"), "1,000 sitemaps"),
        (404, "answers 404"),
        ("http://169.254.169.254/latest/meta-data/", "not a public address"),
    ],
)
def test_a_listing_that_is_no_sitemap_removes_nothing(
    kb: Kb, shelf: str, web: str, monkeypatch: pytest.MonkeyPatch, content: bytes | int | str, reason: str
) -> None:
    monkeypatch.setattr("kb_cli.sync.site.MOST_LIST_BYTES", 1 << 20)
    Web.pages = {"/list": sitemap(f"{web}/a"), "/a": b"granite quarry"}
    place = (f"{web}/list", "--collection", shelf)
    kb.json("sync", *place)
    Web.pages["/list"] = content
    status, out, _ = kb("sync", *place)
    assert status == Exit.FAILED
    assert f"{web}/list\tthe listing is incomplete, so nothing is removed" in out
    assert reason in out
    assert set(held(kb, shelf)) == {"a"}
    status, out, _ = kb("sync", *place, "--dry-run")
    assert (status, reason in out) == (Exit.FAILED, True)


def _documents(kb: Kb, shelf: str) -> list[Any]:
    import msgspec

    from kb_contracts.api import models as m

    return msgspec.convert(kb.json("get", "--collection", shelf)["documents"], list[m.Document])
