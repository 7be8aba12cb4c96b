"""Collections and tags on the command line, by the convention that agents use."""

from __future__ import annotations

import pytest

from kb_cli.exits import CliError, Exit
from kb_cli.labels import Labels, collection_and_tags, labels
from kb_cli.parser import build_parser


def said(*arguments: str) -> Labels:
    """What the options of `kb addnote` say."""
    return labels(build_parser().parse_args(["addnote", "text", *arguments]))


@pytest.mark.requirement("E15")
@pytest.mark.parametrize(
    "arguments",
    [
        ("--tags", "collection:memory,style"),
        ("--tags", "collection:memory", "--tags", "style"),
        ("--collection", "memory", "--tags", "style"),
        ("--collection", "memory", "--tags", " collection:memory , style "),
    ],
)
def test_a_collection_may_be_written_as_its_tag(arguments: tuple[str, ...]) -> None:
    """`--tags collection:memory` and `--collection memory` are one thing."""
    assert said(*arguments).submitted() == ["collection:memory", "style"]


@pytest.mark.requirement("E15")
def test_what_is_new_goes_to_documents_and_a_search_goes_everywhere() -> None:
    """The defaults of the server are those of the command line."""
    assert said("--tags", "style").submitted() == ["collection:documents", "style"]
    assert said("--tags", "style").searched() == ["style"]
    assert said("--tags", "style,collection:memory").searched() == ["style", "collection:memory"]


def test_two_collections_are_refused() -> None:
    """Membership is exclusive, so the command does not choose."""
    with pytest.raises(CliError, match="memory and workspace") as refused:
        said("--collection", "memory", "--tags", "collection:workspace")
    assert refused.value.status is Exit.USAGE


@pytest.mark.parametrize(
    "arguments", [("--collection", "Not A Name"), ("--collection", ""), ("--tags", "a/b")]
)
def test_what_is_no_name_or_no_tag_is_refused_before_anything_is_sent(arguments: tuple[str, ...]) -> None:
    with pytest.raises(CliError) as refused:
        said(*arguments).submitted()
    assert refused.value.status is Exit.USAGE


def test_tags_are_shown_with_the_collection_apart() -> None:
    assert collection_and_tags(["collection:memory", "a", "b"]) == ("memory", "a, b")
    assert collection_and_tags(["a"]) == ("", "a")
