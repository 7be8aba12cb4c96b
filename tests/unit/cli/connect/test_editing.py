"""A member is added to a file and removed again, and the rest of the file stays the same."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kb_cli.connect.clients import Format
from kb_cli.connect.editing import NotEditable, member_of, value_of, with_member, without_member

ENTRY = {"url": "http://127.0.0.1:3000/mcp", "headers": {"Authorization": "Bearer k"}}
PLACE = ("mcpServers",)

ZED = """\
// Settings of the editor
{
\t"theme": "One", // mine
\t"mcpServers": {
\t\t/* of long ago */
\t\t"other": {"command": "x", "args": []},
\t},
\t"tabs": [1,2, 3]
}
"""
TEXTS = {
    "comments, tabs and trailing commas": ZED,
    "a comment behind the last member": '{\n  "a": 1 // {"b": 2},\n}\n',
    "one line": '{"a": [1, {"mcpServers": 2}]}',
    "servers on one line": '{"mcpServers": {"other": {"command": "x"}}, "a": 1}',
    "line ends of Windows": '{\r\n    "a": {},\r\n    "mcpServers": {\r\n        "x": {}\r\n    }\r\n}',
    "a mark at its beginning": '\ufeff{\n  "mcpServers": {\n    "Zürich 🐝": {}\n  }\n}',
    "names without quotes": "{\n  mcpServers: {\n    'x': {},\n  },\n}\n",
    "braces and commas in strings": '{\n  "a": "}, {",\n  "b": "\\"kb\\": {}"\n}',
}
TOML = """\
model = "o3" # mine

[mcp_servers.other]
command = "x"   # two blanks more

[profiles.a]
b=1
"""


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_removing_an_added_member_restores_the_text(text: str) -> None:
    edited = with_member(text, "json", PLACE, "kb", ENTRY)
    assert member_of(edited, "json", PLACE, "kb") == ENTRY
    assert without_member(edited, "json", PLACE, "kb") == text


def test_a_table_of_toml_leaves_no_trace_either() -> None:
    edited = with_member(TOML, "toml", ("mcp_servers",), "kb", ENTRY)
    assert member_of(edited, "toml", ("mcp_servers",), "kb") == ENTRY
    assert without_member(edited, "toml", ("mcp_servers",), "kb") == TOML


def test_a_member_is_written_as_its_neighbours_are() -> None:
    lines = with_member(ZED, "json", PLACE, "kb", ENTRY).splitlines()
    assert lines[lines.index('\t\t"other": {"command": "x", "args": []},') + 1 :][:3] == [
        '\t\t"kb": {',
        '\t\t\t"url": "http://127.0.0.1:3000/mcp",',
        '\t\t\t"headers": {',
    ]


@pytest.mark.parametrize("form", ["json", "toml"])
def test_a_file_that_is_not_there_is_made_of_it(form: Format) -> None:
    made = with_member("", form, ("a", "b"), "kb", ENTRY)
    assert value_of(made, form) == {"a": {"b": {"kb": ENTRY}}}
    assert value_of(without_member(made, form, ("a", "b"), "kb"), form) == {}


@pytest.mark.parametrize("text", ["{}", "{\n}\n", '{"mcpServers": {}}', "{ /* nothing */ }"])
def test_an_empty_object_is_filled(text: str) -> None:
    assert value_of(with_member(text, "json", PLACE, "kb", ENTRY), "json") == {"mcpServers": {"kb": ENTRY}}


@pytest.mark.parametrize("old", [1, {}, {"command": "kb", "args": ["stdio"]}])
def test_one_of_the_same_name_is_replaced(old: object) -> None:
    text = json.dumps({"mcpServers": {"a": 1, "kb": old, "z": 2}}, indent=4)
    edited = with_member(text, "json", PLACE, "kb", ENTRY)
    assert json.loads(edited) == {"mcpServers": {"a": 1, "kb": ENTRY, "z": 2}}
    assert with_member(edited, "json", PLACE, "kb", ENTRY) == edited


def test_removing_an_absent_member_changes_nothing() -> None:
    assert without_member(ZED, "json", PLACE, "kb") == ZED


@pytest.mark.parametrize("form", ["json", "toml"])
@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[1,]",
        '"x"',
        "\x00",
        "{'a': }",
        "a b c",
        "{a\\\\x: 1}",
        '{"mcpServers": [1]}',
        '{"mcpServers": null}',
        "mcpServers = 3",
        "".join(map(chr, range(0xE000, 0xF900))),
    ],
)
def test_a_text_that_is_no_valid_configuration_is_not_edited(text: str, form: Format) -> None:
    with pytest.raises(NotEditable):
        with_member(text, form, PLACE, "kb", ENTRY)


@pytest.mark.parametrize(
    "value",
    [
        {"C:\\xampp": {}},
        {"php": {"command": "C:\\xampp\\php.exe", "cwd": "D:\\users\\\\x"}},
        {r"\x41": r"\u0041", "\\": '\\"', "a": "\\\n\t", "\ue000": "\ue000\ue000\\u"},
    ],
    ids=["a name", "paths of Windows", "like escapes"],
)
@pytest.mark.parametrize("is_ascii", [True, False])
def test_escaped_backslashes_stay(value: dict[str, Any], is_ascii: bool) -> None:
    text = "// \\\\ \\\n" + json.dumps({**value, "mcpServers": value}, indent=1, ensure_ascii=is_ascii)
    assert value_of(text, "json") == {**value, "mcpServers": value}
    edited = with_member(text, "json", PLACE, "kb", ENTRY)
    assert value_of(edited, "json") == {**value, "mcpServers": {**value, "kb": ENTRY}}
    assert without_member(edited, "json", PLACE, "kb") == text
    name = next(iter(value))
    assert value_of(without_member(text, "json", PLACE, name), "json").get("mcpServers", {}) == {
        key: one for key, one in value.items() if key != name
    }


VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=10,
)
COMMENTS = st.sampled_from(["", " ", "\n", "  // }, {\n", '/* "kb": , */', "\r\n\t"])


@st.composite
def layouts(draw: st.DrawFn, value: object) -> str:
    """A JSON value with random comments and white space between its parts."""

    def blank() -> str:
        return draw(COMMENTS)

    def written(value: object) -> str:
        if isinstance(value, dict):
            parts = [f"{spaced(written(key))}:{spaced(written(one))}" for key, one in value.items()]
            return "{" + closed(parts) + blank() + "}"
        if isinstance(value, list):
            return "[" + closed([spaced(written(one)) for one in value]) + "]"
        return json.dumps(value, ensure_ascii=False)

    def spaced(text: str) -> str:
        return blank() + text + blank()

    def closed(parts: list[str]) -> str:
        return ",".join(parts) + "," * (bool(parts) and draw(st.booleans()))

    return spaced(written(value))


@given(
    st.data(),
    st.dictionaries(st.text(max_size=6), VALUES, max_size=3),
    st.none() | st.dictionaries(st.text(max_size=6) | st.just("kb"), VALUES, max_size=3),
)
def test_any_layout_says_afterwards_what_it_said_and_the_member(
    data: st.DataObject, around: dict[str, Any], servers: dict[str, Any] | None
) -> None:
    value = around if servers is None else {**around, "mcpServers": servers}
    value = {key: one for key, one in value.items() if key != "mcpServers" or isinstance(one, dict)}
    text = data.draw(layouts(value))
    assert value_of(text, "json") == value
    edited = with_member(text, "json", PLACE, "kb", ENTRY)
    servers = value.get("mcpServers", {})
    assert value_of(edited, "json") == {**value, "mcpServers": {**servers, "kb": ENTRY}}
    for comment in ("// }, {", '/* "kb": , */'):
        if "kb" not in servers:
            assert edited.count(comment) == text.count(comment)
    left = {key: one for key, one in servers.items() if key != "kb"}
    rest = {key: one for key, one in value.items() if key != "mcpServers"}
    expected = {**rest, "mcpServers": left} if left else rest
    assert value_of(without_member(edited, "json", PLACE, "kb"), "json") == expected
