"""`kb import` of bookmarks and read-later exports: the pages of their addresses, into a real engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kb_cli.imported import NotOfKind
from kb_cli.imported.bookmarks import Bookmark, read
from kb_cli.output import Exit
from tests.unit.cli.conftest import Kb, Web

NETSCAPE = """<!DOCTYPE NETSCAPE-Bookmark-file-1>
<DL><p><DT><H3>Stones</H3><DL><p>
<DT><A HREF="{0}/a?x=1&amp;y=2#top" ADD_DATE="1767323045" TAGS="rock,old/quarry">Granite &amp; co</A>
<DT><A HREF="{0}/a?x=1&amp;y=2">again</A>
<DT><A HREF="{0}/gone">gone</A>
<DT><A HREF="javascript:alert(1)">script</A>
</DL></DL>"""
URL, TIME = "https://example.org/a", "2026-01-02T03:04:05Z"


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("pocket.csv", f"title,url,time_added,tags,status\nA,{URL},1767323045,x|y z,unread\n", ["x", "y z"]),
        (
            "pocket.html",
            f'<ul><li><a href="{URL}" time_added="1767323045" tags="x,y">A</a></li></ul>',
            ["x", "y"],
        ),
        (
            "instapaper.csv",
            f'\ufeffURL,Title,Selection,Folder,Timestamp,Tags\n{URL},A,"a\nb",Unread,1767323045,"[""x"",""y""]"\n',
            ["x", "y"],
        ),
        (
            "readwise.csv",
            f"Title,URL,ID,Document tags,Saved date\nA,{URL},1,\"['x', 'y']\",2026-01-02 03:04:05+00:00\n",
            ["x", "y"],
        ),
        (
            "omnivore.json",
            json.dumps([{"title": "A", "url": URL, "labels": ["x", {"name": "y"}], "savedAt": TIME}]),
            ["x", "y"],
        ),
        ("day.csv", f'url,title,tags,created\n{URL},A,"x,y",2026-01-02 03:04:05\n', ["x", "y"]),
        (
            "halves.json",
            json.dumps([{"title": "A", "url": URL, "labels": ["x\ud800"], "savedAt": TIME}]),
            ["x?"],
        ),
        ("hostile.csv", f"url,title,tags,created\n{URL},A,,{'9' * 5_000}\n,b\n1,2,3,4,5,6\n", []),
    ],
)
def test_an_export_is_read_by_the_names_of_its_fields(
    tmp_path: Path, name: str, text: str, expected: list[str]
) -> None:
    (tmp_path / name).write_text(text)
    time = TIME if expected else ""
    assert read(tmp_path / name)[0] == Bookmark(URL, "A", expected, time)


@pytest.mark.parametrize(
    ("name", "text"),
    [("a.csv", "x,y\n1,2\n"), ("a.json", '["a"]'), ("a.json", "[" * 100_000), ("a.html", "<a" + " " * 10**6)],
)
def test_a_file_without_addresses_is_refused(tmp_path: Path, kb: Kb, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(NotOfKind):
        read(tmp_path / name)
    status, _, error = kb("import", str(tmp_path / name))
    assert (status, error.count("\n")) == (Exit.FAILED, 1)


def test_pages_of_bookmarks_keep_title_tags_and_time(kb: Kb, tmp_path: Path, web: str) -> None:
    """An address that fails is named, and the rest goes in; a second run fetches only that one."""
    Web.pages = {"/a?x=1&y=2": b"granite quarry"}
    file = tmp_path / "bookmarks.html"
    file.write_text(NETSCAPE.format(web))
    arguments = ("import", str(file), "--private", "--collection", "bookmarks", "--json")
    planned = json.loads(kb(*arguments, "--dry-run")[1])
    assert [each["path"] for each in planned["planned"]] == [f"{web}/a?x=1&y=2", f"{web}/gone"]
    status, out, _ = kb(*arguments)
    assert status == Exit.PARTLY
    assert [(each["path"].removeprefix(web), each["outcome"]) for each in json.loads(out)["results"]] == [
        ("/a?x=1&y=2", "added"),
        ("javascript:alert(1)", "skipped"),
        ("/gone", "failed"),
    ]
    (document,) = kb.json("get", "--collection", "bookmarks")["documents"]
    assert (document["title"], document["tags"]) == ("Granite & co", ["collection:bookmarks", "rock"])
    assert document["metadata"] == {
        "imported_from": "bookmarks",
        "saved": TIME,
        "tags_left_out": ["old/quarry"],
    }
    Web.sent.clear()
    assert json.loads(kb(*arguments)[1])["unchanged"] == 1
    assert Web.sent == []
