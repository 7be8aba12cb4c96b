"""Portable schemas: types accepted by the strictest clients, and refusals at build time."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any, Literal
from uuid import UUID

import jsonschema
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from kb_server.schema import SchemaError, check_portable, input_schema, output_schema, types_alone


class Range(msgspec.Struct, forbid_unknown_fields=True):
    """From one day to another."""

    start: str
    end: str | None = None
    title: str = ""


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Everything(msgspec.Struct, forbid_unknown_fields=True):
    """A docstring for us alone."""

    query: Annotated[str, Meta(min_length=1, max_length=500, description="what to look for")]
    top: Annotated[int, Meta(ge=1, le=100, description="how many")] = 10
    score: Annotated[float, Meta(ge=0, le=1)] | None = None
    mode: Annotated[Literal["fts", "vector"] | None, Meta(description="how")] = None
    colour: Colour = Colour.RED
    tags: Annotated[list[str], Meta(description="all of them")] | None = None
    anything: list[Any] = msgspec.field(default_factory=list)
    within: Range | None = None
    ranges: list[Range] = msgspec.field(default_factory=list)
    metadata: dict[str, Any] | None = None
    labels: dict[str, str] | None = None
    id: UUID | None = None
    of: Annotated[str | msgspec.UnsetType, Meta(description="left out")] = msgspec.UNSET
    source: str = msgspec.field(name="from", default="")


def test_an_input_schema_is_flat_and_closed() -> None:
    schema = input_schema(Everything)
    check_portable(schema)
    assert schema["type"] == "object"
    assert schema["required"] == ["query"]
    assert schema["additionalProperties"] is False
    assert not {"title", "description", "$defs", "anyOf"} & set(schema)


def test_an_optional_input_reads_as_its_type() -> None:
    properties = input_schema(Everything)["properties"]
    assert properties["tags"] == {"type": "array", "items": {"type": "string"}, "description": "all of them"}
    assert properties["mode"] == {"type": "string", "enum": ["fts", "vector"], "description": "how"}
    assert properties["score"] == {"type": "number", "minimum": 0, "maximum": 1}
    assert properties["metadata"] == {"type": "object"}
    assert properties["anything"]["items"] == {}


def test_a_nested_model_is_inlined_with_its_own_fields() -> None:
    within = input_schema(Everything)["properties"]["within"]
    assert within == {
        "type": "object",
        "description": "From one day to another.",
        "required": ["start"],
        "properties": {
            "start": {"type": "string"},
            "end": {"type": "string"},
            "title": {"type": "string", "default": ""},
        },
        "additionalProperties": False,
    }
    assert input_schema(Everything)["properties"]["ranges"]["items"] == within


def test_constraints_defaults_formats_and_names_are_kept() -> None:
    properties = input_schema(Everything)["properties"]
    assert properties["top"] == {
        "type": "integer",
        "minimum": 1,
        "maximum": 100,
        "default": 10,
        "description": "how many",
    }
    assert properties["colour"]["type"] == "string"
    assert properties["colour"]["default"] == "red"
    assert set(properties["colour"]["enum"]) == {"red", "blue"}
    assert properties["id"]["format"] == "uuid"
    assert properties["labels"] == {"type": "object", "additionalProperties": {"type": "string"}}
    assert "from" in properties


def test_a_nullable_output_object_or_array_is_itself_or_null() -> None:
    """Some clients that generate types accept no null beside `properties` without a type."""
    properties = output_schema(Everything)["properties"]
    for name, kind in {"tags": "array", "metadata": "object", "within": "object"}.items():
        itself, null = properties[name]["anyOf"]
        assert (itself["type"], null) == (kind, {"type": "null"})
    assert set(properties["within"]["anyOf"][0]["properties"]) == {"start", "end", "title"}


def test_a_nullable_scalar_output_carries_no_type() -> None:
    """A validating client accepts its null; objects are open, so that a newer server may add members."""
    schema = output_schema(Everything)
    assert "additionalProperties" not in schema
    assert "additionalProperties" not in schema["properties"]["within"]["anyOf"][0]
    for name in ("score", "mode", "id"):
        assert "type" not in schema["properties"][name]
    assert schema["properties"]["mode"]["enum"] == ["fts", "vector", None]
    assert schema["properties"]["top"]["type"] == "integer"


def test_a_result_may_be_published_with_its_types_alone() -> None:
    types = types_alone(Everything)
    assert set(types) == {"type", "properties"}
    assert types["properties"]["top"] == {"type": "integer"}
    assert types["properties"]["query"] == {"type": "string"}
    assert types["properties"]["mode"] == {"enum": ["fts", "vector", None]}
    labels, _ = types["properties"]["labels"]["anyOf"]
    assert labels == {"type": "object"}
    assert types["properties"]["within"]["anyOf"][0] == {"type": "object"}


class Inner(msgspec.Struct):
    place: int


class Item(msgspec.Struct):
    name: str
    inner: Inner
    inners: list[Inner]


class Result(msgspec.Struct):
    items: list[Item]


def test_of_its_lists_the_members_are_named_and_no_deeper() -> None:
    assert types_alone(Result)["properties"]["items"]["items"]["properties"] == {
        "name": {"type": "string"},
        "inner": {"type": "object"},
        "inners": {"type": "array", "items": {"type": "object"}},
    }


def test_an_output_validates_with_and_without_its_nulls() -> None:
    validator = jsonschema.Draft202012Validator(output_schema(Everything))
    full = Everything("q", score=0.5, mode="fts", tags=["a"], within=Range("2025"), metadata={"a": None})
    for value in (Everything("q"), full):
        validator.validate(msgspec.to_builtins(value))
    with pytest.raises(jsonschema.ValidationError):
        validator.validate({"query": "q", "tags": [1]})


class Tuple(msgspec.Struct):
    pair: tuple[int, str]


class Union(msgspec.Struct):
    value: str | int


class Nested(msgspec.Struct):
    inner: list[Union]


class Node(msgspec.Struct):
    children: list[Node] = []


class Mixed(msgspec.Struct):
    value: Literal["a", 1]


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Tuple, "Tuple.pair: a tuple"),
        (Union, "Union.value: a union of 2 types"),
        (Nested, "Nested.inner[].value: a union"),
        (Node, "contains itself"),
        (Mixed, "Mixed.value: an enumeration"),
    ],
)
def test_models_without_a_portable_schema_are_refused_at_build(
    model: type[msgspec.Struct], words: str
) -> None:
    for build in (input_schema, output_schema):
        with pytest.raises(SchemaError) as caught:
            build(model)
        assert words in str(caught.value)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "string"}, "$: the root"),
        ({"type": "object", "properties": {"a": {"$ref": "#/x"}}}, "$.properties.a: `$ref`"),
        ({"type": "object", "properties": {"a": {"anyOf": []}}}, "$.properties.a: `anyOf`"),
        ({"type": "object", "properties": {"a": {"type": ["string", "null"]}}}, "a list of types"),
        ({"type": ["object", "null"]}, "$: the root"),
        ({"type": "object", "properties": {"a": {"type": "array"}}}, "an array needs `items`"),
        (
            {"type": "object", "properties": {"a": {"type": "array", "items": {"oneOf": []}}}},
            "$.properties.a.items: `oneOf`",
        ),
        ({"type": "object", "additionalProperties": {"allOf": []}}, "$.additionalProperties: `allOf`"),
        ({"type": "object", "title": "T"}, "`title` is noise"),
    ],
)
def test_an_unportable_schema_is_named_by_its_path(schema: dict[str, Any], words: str) -> None:
    with pytest.raises(SchemaError) as caught:
        check_portable(schema)
    assert words in str(caught.value)


def test_the_only_portable_union_of_a_result_is_with_null() -> None:
    """Typed clients cannot represent other unions; the alternatives are checked too."""
    text, null = {"type": "string"}, {"type": "null"}

    def within(*kinds: dict[str, Any]) -> dict[str, Any]:
        return {"type": "object", "properties": {"a": {"anyOf": list(kinds)}}}

    check_portable(within(text, null), result=True)
    for kinds in ((text, {"type": "number"}), (text, {"type": "number"}, null), (null,)):
        with pytest.raises(SchemaError, match=r"\$.properties.a: `anyOf`"):
            check_portable(within(*kinds), result=True)
    with pytest.raises(SchemaError, match="an array needs"):
        check_portable(within({"type": "array"}, null), result=True)


def test_data_within_a_schema_is_not_mistaken_for_schema() -> None:
    check_portable({"type": "object", "properties": {"anyOf": {"type": "object", "default": {"title": "x"}}}})


@given(
    query=st.text(min_size=1, max_size=20),
    top=st.integers(1, 100),
    score=st.none() | st.floats(0, 1),
    tags=st.none() | st.lists(st.text(max_size=5), max_size=3),
)
def test_arguments_that_fit_the_model_fit_its_schema(
    query: str, top: int, score: float | None, tags: list[str] | None
) -> None:
    given_ = {"query": query, "top": top, "score": score, "tags": tags}
    arguments = {name: value for name, value in given_.items() if value is not None}
    jsonschema.Draft202012Validator(input_schema(Everything)).validate(arguments)
    assert msgspec.convert(arguments, Everything).query == query
