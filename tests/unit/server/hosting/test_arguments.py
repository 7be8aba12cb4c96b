"""Arguments that do not fit are refused in words an agent can act on."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from kb_server.hosting.calls import read_arguments, takes
from kb_server.schema import input_schema
from kb_server.tool import NoArguments, ToolError


class Range(msgspec.Struct, forbid_unknown_fields=True):
    start: str
    days: Annotated[int, Meta(ge=1)] | None = None


class Arguments(msgspec.Struct, forbid_unknown_fields=True):
    query: Annotated[str, Meta(min_length=1, max_length=500)]
    top: Annotated[int, Meta(ge=1, le=100)] = 10
    mode: Literal["fts", "vector"] | None = None
    tags: list[str] | None = None
    exact: bool = False
    within: Range | None = None
    ranges: list[Range] = msgspec.field(default_factory=list)
    labels: dict[str, str] | None = None


SCHEMA = input_schema(Arguments)


def refused(**raw: Any) -> ToolError:
    with pytest.raises(ToolError) as caught:
        read_arguments(raw, Arguments, SCHEMA)
    return caught.value


def test_arguments_that_fit_are_the_model() -> None:
    assert read_arguments({"query": "q", "tags": None}, Arguments, SCHEMA) == Arguments("q")


@pytest.mark.parametrize("days", [7, 7.0])
def test_a_whole_number_is_an_integer_however_it_is_written(days: float) -> None:
    raw = {"query": "q", "top": 5.0, "ranges": [{"start": "", "days": days}]}
    arguments = read_arguments(raw, Arguments, SCHEMA)
    assert arguments == Arguments("q", top=5, ranges=[Range("", 7)])
    assert isinstance(arguments.top, int)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({}, "The parameter `query` is required: a string of 1 to 500 characters."),
        ({"query": "q", "within": {}}, "The parameter `within.start` is required: a string."),
        (
            {"query": "q", "ranges": [{"start": ""}, {}]},
            "The parameter `ranges[1].start` is required: a string.",
        ),
    ],
)
def test_a_missing_parameter_is_named_with_what_it_takes(raw: dict[str, Any], message: str) -> None:
    error = refused(**raw)
    assert (error.code, error.message) == ("missing_required_parameter", message)


@pytest.mark.parametrize(
    ("raw", "parameter", "words"),
    [
        ({"query": ""}, "query", 'takes a string of 1 to 500 characters; got ""'),
        ({"query": 5}, "query", "takes a string of 1 to 500 characters; got 5"),
        ({"query": "x" * 501}, "query", "got a string of 501 characters"),
        ({"query": "q", "top": 0}, "top", "takes an integer from 1 to 100; got 0"),
        ({"query": "q", "top": 5.5}, "top", "takes an integer from 1 to 100; got 5.5"),
        ({"query": "q", "top": 101.0}, "top", "takes an integer from 1 to 100; got 101.0"),
        ({"query": "q", "top": 1e300}, "top", "takes an integer from 1 to 100; got 1e300"),
        ({"query": "q", "top": "5"}, "top", 'takes an integer from 1 to 100; got "5"'),
        ({"query": "q", "mode": "both"}, "mode", 'takes one of "fts", "vector"; got "both"'),
        ({"query": "q", "tags": "a"}, "tags", 'takes an array of strings; got "a"'),
        ({"query": "q", "tags": ["a", 1]}, "tags[1]", "takes a string; got 1"),
        ({"query": "q", "exact": "yes"}, "exact", 'takes true or false; got "yes"'),
        ({"query": "q", "within": []}, "within", "takes an object; got an array of 0"),
        (
            {"query": "q", "within": {"start": "", "days": 0}},
            "within.days",
            "takes an integer of at least 1; got 0",
        ),
        ({"query": "q", "labels": {"a": 1}}, "labels[...]", "takes a string; got something else"),
        ({"query": None}, "query", "got null"),
        ({"query": {"a": 1}}, "query", "got an object"),
    ],
)
def test_a_wrong_value_is_named_with_what_the_parameter_takes(
    raw: dict[str, Any], parameter: str, words: str
) -> None:
    error = refused(**raw)
    assert error.code == "invalid_parameter"
    assert error.message.startswith(f"The parameter `{parameter}` takes ")
    assert words in error.message
    assert error.details == {"parameter": parameter}


def test_an_unknown_parameter_is_answered_with_the_known_ones() -> None:
    assert "There is no parameter `limit`. It takes `query`, `top`" in refused(query="q", limit=1).message
    nested = refused(query="q", within={"start": "", "end": ""})
    assert nested.message == "There is no parameter `within.end`. It takes `start`, `days`."


def test_a_tool_without_parameters_says_so() -> None:
    with pytest.raises(ToolError) as caught:
        read_arguments({"a": 1}, NoArguments, input_schema(NoArguments))
    assert caught.value.message == "There is no parameter `a`. It takes no parameters."


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "number", "minimum": 0, "maximum": 1}, "a number from 0 to 1"),
        ({"type": "number", "exclusiveMinimum": 0}, "a number above 0"),
        ({"type": "integer", "maximum": 5}, "an integer of at most 5"),
        ({"type": "string", "pattern": "^a$"}, "a string that matches ^a$"),
        ({"type": "string", "format": "uuid"}, "a string (uuid)"),
        ({"type": "array", "items": {}, "maxItems": 3}, "an array of at most 3 items"),
        ({}, "a JSON value"),
    ],
)
def test_a_schema_is_put_in_words(schema: dict[str, Any], words: str) -> None:
    assert takes(schema) == words


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-9, 9)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(st.sampled_from(list(Arguments.__struct_fields__)) | st.text(max_size=12), json_values)
)
def test_any_arguments_are_taken_or_refused_by_name(raw: dict[str, Any]) -> None:
    error = refusal_of(raw)
    assert error is None or error.code in ("invalid_parameter", "missing_required_parameter")
    assert error is None or len(error.message) < 400


def refusal_of(raw: dict[str, Any]) -> ToolError | None:
    try:
        read_arguments(raw, Arguments, SCHEMA)
    except ToolError as error:
        return error
    return None
