"""The main text of web pages."""

from __future__ import annotations

import pytest

from kb_readers.article import article_of
from kb_readers.html import markdown_of

PROSE = "Granite is an igneous rock that cools slowly below the surface of the earth. " * 8
LINKS = '<ul><li><a href="/a">All stones of the quarry</a><li><a href="/b">All roofs of the town</a></ul>'


def page(body: str) -> str:
    return f"<html><head><title>Stones</title></head><body>{body}</body></html>"


@pytest.mark.parametrize(
    "part",
    [
        f"<nav>{LINKS}</nav>",
        "<footer>All rights reserved</footer>",
        '<div class="cookie-banner">We use cookies</div>',
        '<div role="navigation">Back to the top</div>',
        '<div id="leftSidebar">Most read this week</div>',
        f"<div>{LINKS}</div>",
        "<aside>Read our other pages</aside>",
        '<div id="aside">Read our other pages</div>',
        '<div class="login-dialog">Enter your password</div>',
    ],
)
def test_parts_beside_and_in_the_main_text_are_left_out(part: str) -> None:
    body = f"<div><h1>Granite</h1><p>{PROSE}</p>{part}<p>{PROSE}</p></div>"
    article = article_of(page(f"{part}{body}{part}"))
    assert article.left_out == 3 * (article_of(page(f"{part}{body}")).words - article_of(page(body)).words)
    assert markdown_of(article.html) == f"# Granite\n\n{PROSE.strip()}\n\n{PROSE.strip()}"


def test_a_heading_above_the_main_text_is_kept() -> None:
    article = article_of(page(f"<header><h1>Granite</h1>{LINKS * 9}</header><main><p>{PROSE}</p></main>"))
    assert markdown_of(article.html) == f"# Granite\n\n{PROSE.strip()}"


def test_a_discussion_keeps_its_comments_and_an_article_does_not() -> None:
    comments = f'<div class="comments"><div class="comment"><p>{PROSE}</p></div></div>'
    article = article_of(page(f"<div><p>{PROSE * 3}</p>{comments}</div>"))
    assert article.left_out * 4 == article.words
    discussion = page(f"<div><p>{PROSE}</p>{comments * 3}</div>")
    assert article_of(discussion).html == discussion


def test_admonitions_and_tables_of_links_in_prose_are_kept() -> None:
    note = '<aside class="admonition">Mind the edge.</aside>'
    for name in ("content", "node--promoted", "paywall-container"):
        whole = page(f'<main><p>{PROSE * 2}</p><div class="{name}"><p>{PROSE}</p>{note}</div></main>')
        assert markdown_of(article_of(whole).html) == markdown_of(whole)


def test_a_page_whose_main_text_is_a_small_part_is_kept_whole() -> None:
    whole = page(f"<nav>{LINKS * 99}</nav><main><p>{PROSE}</p></main>")
    article = article_of(whole)
    assert (article.html, article.left_out) == (whole, 0)


@pytest.mark.parametrize("html", ["", "<", "<div>", "</div></main>", "<main><nav>", "<p>a</p><body><div>"])
def test_broken_pages_are_kept(html: str) -> None:
    assert article_of(html).html == html


def test_deep_nesting_takes_time_in_proportion() -> None:
    depth = 20_000
    article = article_of("<div>" * depth + f"<p>{PROSE}</p>" + "</div>" * depth)
    assert article.words == len(PROSE.split())


def test_the_blocks_of_a_page_builder_are_kept() -> None:
    block = f'<div class="elementor-widget elementor-widget-text-editor"><p>{PROSE}</p></div>'
    assert article_of(page(f"<h1>Stones</h1>{block * 3}")).left_out == 0
