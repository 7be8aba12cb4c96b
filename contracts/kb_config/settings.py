"""Typed settings: a Struct whose fields name their environment variables.

Flags override the environment, the environment overrides the file `kb.toml`, the file overrides the defaults.
The environment may name a file in place of a secret value: `KB_API_KEY_FILE` for `KB_API_KEY`.
Each part declares one class; `read` fills it and refuses a wrong value with the variable's name. A field
whose type is such a class holds nested settings. `part_kinds` returns the classes of optional parts, which
have no field of their own.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar, get_args, get_origin, get_type_hints

import msgspec

S = TypeVar("S", bound="Settings")
V = TypeVar("V")


class SettingsError(ValueError):
    """A setting has an invalid value; the message names the variable and the accepted values."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A field's variable, purpose and choices; `printable` returns a value without its secret part."""

    variable: str
    help: str
    secret: bool = False
    choices: tuple[str, ...] = ()
    printable: Callable[[str], str] = str

    @property
    def may_be_in_file(self) -> bool:
        """True if the value, or a part of it, is secret: `<variable>_FILE` may name a file with it."""
        return self.secret or self.printable is not str


@dataclass(frozen=True, slots=True)
class SettingValue:
    """One setting with its value, for printing. A secret's value is replaced by `set` or `not set`."""

    variable: str
    value: str
    source: str
    help: str


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Base class of each part's settings."""

    REMOVED: ClassVar[Mapping[str, str]] = {}
    """Names of former settings, each with its replacement. One that is still set is reported at start."""

    removed_but_set: tuple[str, ...] = ()
    """Names in `REMOVED` that the environment or the file still sets; not a setting of its own."""
    parts: tuple[Settings, ...] = ()
    """The settings of the optional parts, each of another class."""

    @classmethod
    def part_kinds(cls) -> Sequence[type[Settings]]:
        """Return the classes of the optional parts' settings."""
        return ()

    def of(self, kind: type[S]) -> S:
        """Return the settings of an optional part: its defaults, if none were given."""
        return next((each for each in self.parts if type(each) is kind), None) or kind()

    def removal_warnings(self) -> Iterator[str]:
        """Yield a warning for each former setting that is still set."""
        for name in self.removed_but_set:
            yield f"{name} has no effect any more: {self.REMOVED[name]}; remove it from the settings"
        for settings in self._inner():
            yield from settings.removal_warnings()

    @classmethod
    def removed(cls) -> dict[str, str]:
        """Return `REMOVED` of this class and its nested settings."""
        kinds = (*_nested(cls).values(), *cls.part_kinds())
        nested = {name: reason for kind in kinds for name, reason in kind.removed().items()}
        return {**nested, **cls.REMOVED}

    @property
    def secrets(self) -> tuple[str, ...]:
        """The values of secret settings, which no log line may contain."""
        own = (getattr(self, name) for name, setting, _ in _fields(type(self)) if setting.secret)
        return (*own, *(secret for settings in self._inner() for secret in settings.secrets))

    def parsed(self, name: str, parse: Callable[[Any], V]) -> V:
        """Return the result of `parse` for a field's value.
        Raises SettingsError: it raises ValueError, whose text has the accepted values.
        """
        value = getattr(self, name)
        try:
            return parse(value)
        except ValueError as error:
            (setting,) = (each for field, each, _ in _fields(type(self)) if field == name)
            raise SettingsError(f"{_with_value(setting, value)}: {error}") from error

    @classmethod
    def read(cls: type[S], environ: Mapping[str, str], *, file: Path | None = None, **flags: Any) -> S:
        """Return settings from `flags`, then `environ`, then `file`, then the defaults.

        A flag of None and an empty variable count as not set. `~` in paths is expanded.
        Raises SettingsError: a value is invalid, or `file` cannot be read.
        """
        return cls._gather(environ, file, flags)[0]

    @classmethod
    def describe(
        cls: type[S], environ: Mapping[str, str], *, file: Path | None = None, **flags: Any
    ) -> list[SettingValue]:
        """Return each setting with its value and its source (flag, environment, file, default), and each
        removed one that is still set.
        """
        settings, sources = cls._gather(environ, file, flags)
        return settings._rows(sources)

    def _inner(self) -> Iterator[Settings]:
        for name in _nested(type(self)):
            yield getattr(self, name)
        for kind in self.part_kinds():
            yield self.of(kind)

    def _rows(self, sources: Mapping[str, str]) -> list[SettingValue]:
        rows = [row for settings in self._inner() for row in settings._rows(sources)]
        for name, setting, _ in _fields(type(self)):
            value = getattr(self, name)
            if setting.secret:
                text = "set" if value else "not set"
            elif isinstance(value, list):
                text = ",".join(str(item) for item in value)
            else:
                text = setting.printable(str(value))
            rows.append(SettingValue(setting.variable, text, sources[setting.variable], setting.help))
        for name in self.removed_but_set:
            rows.append(SettingValue(name, "no effect", sources[name], f"removed: {self.REMOVED[name]}"))
        return rows

    @classmethod
    def _gather(
        cls: type[S], environ: Mapping[str, str], file: Path | None, flags: Mapping[str, Any]
    ) -> tuple[S, dict[str, str]]:
        """Return the settings, and the source of each value by its variable."""
        from_file: dict[str, Any] = {}
        if file is not None and file.exists():
            try:
                from_file = tomllib.loads(file.read_text("utf-8"))
            except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
                raise SettingsError(f"{file}: {error}") from error
        values: dict[str, Any] = {}
        sources: dict[str, str] = {}
        for name, kind in _nested(cls).items():
            values[name], of_kind = kind._gather(environ, file, flags)
            sources |= of_kind
        parts = [kind._gather(environ, file, flags) for kind in cls.part_kinds()]
        values["parts"] = tuple(part for part, _ in parts)
        for _, of_part in parts:
            sources |= of_part
        for name, setting, annotation in _fields(cls):
            raw, source = flags.get(name), "flag"
            if raw is None:
                raw, source = _variable(setting, environ), "environment"
            if raw is None:
                raw, source = from_file.get(setting.variable), "file"
            if raw is None:
                source = "default"
            else:
                values[name] = _convert(setting, annotation, raw)
            sources[setting.variable] = source
        for name in cls.REMOVED:
            if environ.get(name, "") or name in from_file:
                sources[name] = "environment" if environ.get(name, "") else "file"
        values["removed_but_set"] = tuple(name for name in cls.REMOVED if name in sources)
        settings = cls(**values)
        paths = {
            name: expanded(setting.variable, value)
            for name, setting, _ in _fields(cls)
            if isinstance(value := getattr(settings, name), Path)
        }
        return msgspec.structs.replace(settings, **paths), sources


@cache
def _fields(cls: type[Settings]) -> tuple[tuple[str, Setting, Any], ...]:
    return tuple(
        (name, item, annotation)
        for name, annotation in get_type_hints(cls, include_extras=True).items()
        if get_origin(annotation) is Annotated
        for item in get_args(annotation)
        if isinstance(item, Setting)
    )


@cache
def _nested(cls: type[Settings]) -> Mapping[str, type[Settings]]:
    hints = get_type_hints(cls).items()
    return {name: kind for name, kind in hints if isinstance(kind, type) and issubclass(kind, Settings)}


def _variable(setting: Setting, environ: Mapping[str, str]) -> str | None:
    """Return the value of a setting's variable, or the content of the file that `<variable>_FILE` names.
    Raises SettingsError: the file cannot be read, is empty, or differs from the variable.
    """
    value = environ.get(setting.variable) or None
    name = f"{setting.variable}_FILE"
    if not setting.may_be_in_file or not (path := environ.get(name)):
        return value
    try:
        content = expanded(name, path).read_text("utf-8-sig").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{name}={path!r}: {error}") from error
    if not content:
        raise SettingsError(f"{name}={path!r}: the file is empty")
    if value not in (None, content):
        raise SettingsError(
            f"{name}={path!r}: {setting.variable} is set, too, to another value; set one of them"
        )
    return content


def _convert(setting: Setting, annotation: Any, raw: Any) -> Any:
    target = get_args(annotation)[0]
    meta = tuple(item for item in get_args(annotation)[1:] if isinstance(item, msgspec.Meta))
    wanted = Annotated[(target, *meta)] if meta else target
    if setting.choices and isinstance(raw, str):
        raw = raw.lower()
    if setting.choices and raw not in setting.choices:
        raise SettingsError(f"{setting.variable}={raw!r}: takes one of {', '.join(setting.choices)}")
    if target is Path:
        return Path(raw)
    if isinstance(raw, str) and get_origin(target) is list:
        raw = [part.strip() for part in raw.split(",") if part.strip()]
    try:
        return msgspec.convert(raw, wanted, strict=False)
    except msgspec.ValidationError as error:
        raise SettingsError(f"{_with_value(setting, raw)}: {error}") from error


def expanded(variable: str, path: str | Path) -> Path:
    """Return the path of a setting with `~` expanded. Raises SettingsError: it is that of an unknown user."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise SettingsError(
            f"{variable}={str(path)!r}: no home is known for this ~; give the path"
        ) from error


def _with_value(setting: Setting, value: Any) -> str:
    return f"{setting.variable}={'(secret)' if setting.secret else repr(value)}"


def check_pair(first: str, value: str, second: str, other: str) -> None:
    """Check two settings that need each other. Raises SettingsError: only one is set."""
    if bool(value) != bool(other):
        there, missing = (first, second) if value else (second, first)
        raise SettingsError(f"{missing}: is missing; {there} is set, and each needs the other")
