"""Invalid arguments are refused with messages that an agent can act on."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from kb_server.hosting.arguments import read_arguments, takes
from kb_server.tool import EMPTY_COUNTS, EXACT, NoArguments, ToolError
from tests.support.json_values import values


class Range(msgspec.Struct, forbid_unknown_fields=True):
    start: str
    days: Annotated[int, Meta(ge=1)] | None = None


class Arguments(msgspec.Struct, forbid_unknown_fields=True):
    query: Annotated[str, Meta(min_length=1, max_length=500)]
    top: Annotated[int, Meta(ge=1, le=100)] = 10
    mode: Literal["fts", "vector"] | None = None
    tags: list[str] | None = None
    exact: bool = False
    erase: Annotated[bool, Meta(extra=EXACT)] = False
    new: Annotated[str, Meta(max_length=500, extra=EMPTY_COUNTS)] | None = None
    share: Annotated[float, Meta(ge=0, le=1)] = 0.5
    within: Range | None = None
    ranges: list[Range] = msgspec.field(default_factory=list)
    labels: dict[str, Annotated[str, Meta(min_length=1)]] | None = None


class WithMetadata(msgspec.Struct, forbid_unknown_fields=True):
    top: Annotated[int, Meta(ge=1)]
    metadata: dict[str, Any]


def refused(**raw: Any) -> ToolError:
    with pytest.raises(ToolError) as caught:
        read_arguments(raw, Arguments)
    return caught.value


def test_arguments_that_fit_are_the_model() -> None:
    assert read_arguments({"query": "q", "tags": None}, Arguments) == Arguments("q")


@pytest.mark.parametrize("days", [7, 7.0])
def test_a_whole_number_is_an_integer_however_it_is_written(days: float) -> None:
    raw = {"query": "q", "top": 5.0, "ranges": [{"start": "", "days": days}]}
    arguments = read_arguments(raw, Arguments)
    assert arguments == Arguments("q", top=5, ranges=[Range("", 7)])
    assert isinstance(arguments.top, int)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({}, "The parameter `query` is required: a string of 1 to 500 characters."),
        ({"query": None}, "The parameter `query` is required: a string of 1 to 500 characters."),
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
        ({"query": "q", "top": -1}, "top", "takes an integer from 1 to 100; got -1"),
        ({"query": "q", "top": 5.5}, "top", "takes an integer from 1 to 100; got 5.5"),
        ({"query": "q", "top": 101.0}, "top", "takes an integer from 1 to 100; got 101.0"),
        ({"query": "q", "top": 1e300}, "top", "takes an integer from 1 to 100; got 1e300"),
        ({"query": "q", "top": "101"}, "top", 'takes an integer from 1 to 100; got "101"'),
        ({"query": "q", "top": "5.5"}, "top", 'takes an integer from 1 to 100; got "5.5"'),
        ({"query": "q", "top": " 5"}, "top", 'takes an integer from 1 to 100; got " 5"'),
        ({"query": "q", "top": "1e1"}, "top", 'takes an integer from 1 to 100; got "1e1"'),
        ({"query": "q", "top": "٥"}, "top", 'takes an integer from 1 to 100; got "٥"'),
        ({"query": "q", "top": True}, "top", "takes an integer from 1 to 100; got true"),
        ({"query": "q", "mode": "both"}, "mode", 'takes one of "fts", "vector"; got "both"'),
        ({"query": "q", "tags": "[a"}, "tags", 'takes an array of strings; got "[a"'),
        ({"query": "q", "tags": "[1]"}, "tags", 'takes an array of strings; got "[1]"'),
        ({"query": "q", "ranges": "a"}, "ranges", 'takes an array of objects; got "a"'),
        ({"query": "q", "tags": ["a", 1]}, "tags[1]", "takes a string; got 1"),
        ({"query": "q", "exact": "yes"}, "exact", 'takes true or false; got "yes"'),
        ({"query": "q", "exact": "True"}, "exact", 'takes true or false; got "True"'),
        ({"query": "q", "exact": 1}, "exact", "takes true or false; got 1"),
        ({"query": "q", "erase": "true"}, "erase", 'takes true or false; got "true"'),
        ({"query": "q", "erase": ""}, "erase", 'takes true or false; got ""'),
        ({"query": "q", "within": []}, "within", "takes an object; got an array of 0"),
        (
            {"query": "q", "within": {"start": "", "days": -1}},
            "within.days",
            "takes an integer of at least 1; got -1",
        ),
        (
            {"query": "q", "labels": {"a": 1}},
            "labels[...]",
            "takes a string of at least 1 character; got something else",
        ),
        ({"query": "q", "within": '{"start": ""'}, "within", "takes an object; got"),
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


@pytest.mark.parametrize(
    ("raw", "understood"),
    [
        ({"top": "5"}, {"top": 5}),
        ({"top": "+5.0"}, {"top": 5}),
        ({"share": "0.25"}, {"share": 0.25}),
        ({"share": "1"}, {"share": 1.0}),
        ({"exact": "true"}, {"exact": True}),
        ({"exact": "false"}, {"exact": False}),
        ({"tags": "a,b"}, {"tags": ["a,b"]}),
        ({"tags": '["a", "b"]'}, {"tags": ["a", "b"]}),
        ({"within": '{"start": "s", "days": "7"}'}, {"within": Range("s", 7)}),
        ({"ranges": '[{"start": "s", "days": 7.0}]'}, {"ranges": [Range("s", 7)]}),
        ({"within": {"start": "s", "days": 0}}, {"within": Range("s")}),
        ({"labels": '{"a": "null"}'}, {"labels": {"a": "null"}}),
        ({"new": ""}, {"new": ""}),
        ({"share": 0}, {"share": 0.0}),
        ({"toolCallId": "1", "sessionId": "2", "chatInput": "3", "action": "4"}, {}),
        *(
            ({name: None}, {})
            for name in ("top", "mode", "tags", "exact", "erase", "new", "share", "within", "ranges")
        ),
        *(({name: ""}, {}) for name in ("top", "mode", "tags", "exact", "share", "within", "ranges")),
        *(({name: []}, {}) for name in ("tags", "ranges")),
        *(({"top": zero}, {}) for zero in (0, 0.0, "0")),
    ],
)
def test_a_value_with_one_meaning_is_understood(raw: dict[str, Any], understood: dict[str, Any]) -> None:
    assert read_arguments({"query": "q", **raw}, Arguments) == Arguments(query="q", **understood)


@pytest.mark.parametrize("query", ['{"query": "q"}', '["q"]', "5", "true", "null"])
def test_text_stays_text(query: str) -> None:
    assert read_arguments({"query": query}, Arguments).query == query


def test_metadata_is_kept_as_it_came() -> None:
    metadata = {"a": None, "b": "", "c": "5", "d": 5.0, "e": [None, {"f": None}]}
    arguments = read_arguments({"top": "5", "metadata": metadata}, WithMetadata)
    assert repr(arguments.metadata) == repr(metadata)


def test_all_wrong_parameters_are_named_in_one_answer() -> None:
    error = refused(top="x", q="what", tags=5)
    assert error.message == (
        'The parameter `top` takes an integer from 1 to 100; got "x". '
        "There is no parameter `q`. Did you mean `query`? "
        "The parameter `tags` takes an array of strings; got 5. "
        "The parameter `query` is required: a string of 1 to 500 characters."
    )
    assert error.details == {"parameter": "top", "parameters": ["top", "q", "tags", "query"]}


def test_an_answer_names_a_few_wrong_parameters_and_counts_the_others() -> None:
    error = refused(**{f"parameter {number}": number for number in range(1_000)})
    assert error.message.endswith("993 more do not fit.")
    assert len(error.details["parameters"]) == 8


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("limit", "top"),
        ("k", "top"),
        ("top_k", "top"),
        ("q", "query"),
        ("text", "query"),
        ("content", "query"),
        ("topp", "top"),
        ("Tags", "tags"),
    ],
)
def test_an_unknown_parameter_is_answered_with_the_one_that_is_meant(name: str, meant: str) -> None:
    error = refused(**{"query": "q", "tags": ["a"], name: 1} if meant == "top" else {name: "a"})
    assert f"There is no parameter `{name}`. Did you mean `{meant}`?" in error.message


def test_an_unknown_parameter_is_answered_with_the_known_ones() -> None:
    assert "There is no parameter `colour`. It takes `query`, `top`" in refused(query="q", colour=1).message
    nested = refused(query="q", within={"start": "", "end": ""})
    assert nested.message == "There is no parameter `within.end`. It takes `start`, `days`."


def test_a_tool_without_parameters_says_so() -> None:
    with pytest.raises(ToolError) as caught:
        read_arguments({"a": 1}, NoArguments)
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


@given(st.dictionaries(st.sampled_from(list(Arguments.__struct_fields__)) | st.text(max_size=12), values))
def test_any_arguments_are_taken_or_refused_by_name(raw: dict[str, Any]) -> None:
    refusal: ToolError | None = None
    try:
        read_arguments(raw, Arguments)
    except ToolError as error:
        refusal = error
    assert refusal is None or refusal.code in ("invalid_parameter", "missing_required_parameter")
    assert refusal is None or len(refusal.message) < 2_000
