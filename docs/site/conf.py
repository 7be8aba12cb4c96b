"""Configuration of Sphinx for the site (`make site`).

The pages are those of the repository where they lie, so that their links lead to the same places on a code
host and here. What they link to beside pages (contracts, examples) is copied into the site by MyST. The
navigation is declared in docs/index.md alone: its sections and their lists of links.
"""

from __future__ import annotations

import posixpath
import re
import tomllib
from pathlib import Path

from sphinx.application import Sphinx

project = "kb"
release = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))["project"][
    "version"
]
extensions = ["myst_parser"]
root_doc = "docs/index"
include_patterns = ["docs/**", "*.md", "tests/README.md", "skills/kb/SKILL.md"]
exclude_patterns = [".*", "build", "dist", "out"]
nitpicky = True
myst_heading_anchors = 4
templates_path = ["templates"]

html_theme = "furo"
html_title = f"kb {release}"
html_additional_pages = {"index": "index.html"}
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False

_SECTION = re.compile(r"^## (?P<title>.+)\n(?P<body>(?:(?!## ).*\n)*)", re.MULTILINE)
_ENTRY = re.compile(r"^- \[(?P<title>.+?)\]\((?P<path>.+?)\.md\)", re.MULTILINE)


def navigation(index: str) -> str:
    """The text of the index, with a hidden table of contents behind the list of each section."""
    return _SECTION.sub(lambda section: section[0] + _contents(section["title"], section["body"]), index)


def _contents(title: str, body: str) -> str:
    folder = posixpath.dirname(root_doc)
    entries = [
        f"{entry['title']} </{posixpath.normpath(posixpath.join(folder, entry['path']))}>"
        for entry in _ENTRY.finditer(body)
    ]
    return "\n".join(["", "```{toctree}", ":hidden:", f":caption: {title}", "", *entries, "```", "", ""])


def _read(_app: Sphinx, name: str, source: list[str]) -> None:
    if name == root_doc:
        source[0] = navigation(source[0])


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", _read)
    return {"parallel_read_safe": True}
