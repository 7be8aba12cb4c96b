"""The site: built from the pages in place, without external resources and without broken links."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from shutil import copy, copytree

import pytest

from tests.support.stack import ROOT

pytestmark = pytest.mark.process

ELSEWHERE = re.compile(r"<(?:link|script|img|iframe|source)\b[^>]*(?:src|href)=\"(?:https?:)?//[^\"]*\"")
SECTIONS = re.findall(r"^## (.+)$", (ROOT / "docs" / "index.md").read_text("utf-8"), re.MULTILINE)


[OPTIONS] = re.findall(
    r"^\t\$\(BIN\)/sphinx-build (.+) \. out/site$", (ROOT / "Makefile").read_text(), re.MULTILINE
)
"""The options of `make site`."""


def built(source: Path, target: Path) -> subprocess.CompletedProcess[str]:
    """Run Sphinx as `make site` does, but for the folders of its output."""
    command = [sys.executable, "-m", "sphinx", *OPTIONS.split(), "--doctree-dir", str(target / "state")]
    command += [".", str(target / "site")]
    return subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = built(ROOT, folder)
    assert done.returncode == 0, done.stderr
    return folder / "site"


def test_every_page_has_the_whole_navigation(site: Path) -> None:
    for page in ("README.html", "docs/clients.html", "docs/adding/tool.html"):
        captions = re.findall(r'<span class="caption-text">(.+?)</span>', (site / page).read_text("utf-8"))
        assert captions == SECTIONS


def test_links_out_of_the_pages_lead_to_files_of_the_site(site: Path) -> None:
    """Links to pages above docs/, and to other files: contracts, examples, settings of a balancer."""
    assert 'href="../ARCHITECTURE.html"' in (site / "docs/index.html").read_text("utf-8")
    page = site / "docs" / "verification.html"
    [linked] = re.findall(r'href="([^"]+engine\.openapi\.yaml)"', page.read_text("utf-8"))
    contract = ROOT / "contracts" / "engine.openapi.yaml"
    assert (page.parent / linked).read_bytes() == contract.read_bytes()


def test_the_site_loads_no_file_from_another_host(site: Path) -> None:
    found = {page.name: ELSEWHERE.findall(page.read_text("utf-8")) for page in site.rglob("*.html")}
    assert {page: loaded for page, loaded in found.items() if loaded} == {}
    for style in (site / "_static").rglob("*.css"):
        assert not re.search(r"url\(['\"]?(?:https?:)?//|@import\s+['\"]https?:", style.read_text("utf-8")), (
            style
        )


def test_a_broken_link_a_missing_heading_and_a_page_without_a_place_are_refused(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for entry in ROOT.iterdir():
        if not entry.name.startswith(".") and entry.name not in ("docs", "out", "dist"):
            (source / entry.name).symlink_to(entry)
    copytree(ROOT / "docs" / "site", source / "docs" / "site")
    for page in ("index.md", "folders.md"):  # their links to the other pages are broken too, but not checked
        copy(ROOT / "docs" / page, source / "docs" / page)
    (source / "docs" / "lonely.md").write_text(
        "# Lonely\n\n[a](nowhere.md) and [b](folders.md#no-such-heading)\n"
    )
    done = built(source, tmp_path)
    assert done.returncode != 0
    assert "'nowhere.md' [myst.xref_missing]" in done.stderr
    assert "no-such-heading" in done.stderr
    assert "lonely.md: WARNING: document isn't included in any toctree" in done.stderr
