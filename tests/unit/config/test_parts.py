"""The settings of optional parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from kb_config.parts import PartSettings
from kb_config.settings import Setting, Settings


class Index(PartSettings, frozen=True, kw_only=True):
    url: Annotated[str, Setting("INDEX_URL", "the URL of an index")] = ""


class Model(Settings, frozen=True, kw_only=True):
    url: Annotated[str, Setting("MODEL_URL", "the URL of a model", secret=True)] = ""


class Engine(Settings, frozen=True, kw_only=True):
    @classmethod
    def part_kinds(cls) -> Sequence[type[Settings]]:
        return (Index, Model)


def test_two_parts_may_have_a_field_of_the_same_name() -> None:
    environ = {"INDEX_URL": "http://index:1"}
    sources = {row.variable: row.source for row in Engine.describe(environ)}
    assert sources == {"INDEX_URL": "environment", "MODEL_URL": "default"}
    assert Engine.read(environ).of(Index).url == "http://index:1"


def test_the_settings_of_one_part_are_never_taken_for_their_base_class() -> None:
    assert type(Engine.read({}).of(PartSettings)) is PartSettings


def test_a_part_without_settings_has_its_defaults_and_its_secrets_are_known() -> None:
    assert Engine().of(Model).url == ""
    assert Engine(parts=(Model(url="hidden"),)).secrets == ("hidden",)
