"""Settings for every command: flags over the environment over `kb.toml` over the defaults."""

from __future__ import annotations

import argparse
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec

from kb_cli.output import CliError, Exit, Output, did_you_mean
from kb_config.rendezvous import Rendezvous
from kb_config.settings import Setting, Settings
from kb_contracts.access.local import local_token

if TYPE_CHECKING:
    from kb_cli.client import EngineClient
    from kb_engine.embed.offline import OfflineEmbedder
    from kb_engine.settings import EngineSettings


S = TypeVar("S", bound=Settings)

DEFAULT_FILE = Path("kb.toml")
FILE_VARIABLE = "KB_CONFIG"
DEFAULT_ENGINE = "http://127.0.0.1:8000"


class ClientSettings(Settings, frozen=True, kw_only=True):
    """What a command needs to ask an engine; `client_settings` fills in which one."""

    engine_url: Annotated[
        str, Setting("KB_ENGINE_URL", "base URL of the engine; empty: that of the data folder")
    ] = ""
    home: Annotated[Path, Setting("KB_HOME", "data folder")] = Path("~/.local/share/kb")
    api_key: Annotated[str, Setting("KB_API_KEY", "the engine's bearer key", secret=True)] = ""
    engine_ca: Annotated[
        str, Setting("KB_ENGINE_CA", "certificates that vouch for the engine's; empty: the system's")
    ] = ""


class Row(msgspec.Struct):
    """One setting as `kb config` shows it; `parts` are those that read it."""

    variable: str
    value: str
    source: str
    help: str
    parts: list[str]


def read(
    kind: type[S], options: argparse.Namespace, *, environ: Mapping[str, str] = os.environ, **flags: Any
) -> S:
    """The settings of one part: what `flags` say, then what the options of the same names say.

    Raises:
        SettingsError: a value does not fit, or the file is unreadable.
        CliError: the file is missing, or names an unknown setting.
    """
    return kind.read(environ, file=config_file(options, environ), **(vars(options) | flags))


def is_set(kind: type[Settings], variable: str, options: argparse.Namespace) -> bool:
    """Whether the environment or the file says what a setting is."""
    entries = kind.describe(os.environ, file=config_file(options))
    return any(entry.variable == variable and entry.source != "default" for entry in entries)


def config_file(options: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> Path | None:
    """The file of settings: `--config`, else KB_CONFIG, else ./kb.toml where there is one; checked.

    Raises:
        CliError: it was asked for and is not there, or it cannot be used.
    """
    named = getattr(options, "config", None) or environ.get(FILE_VARIABLE)
    file = Path(named).expanduser() if named else DEFAULT_FILE
    if not file.is_file():
        if named:
            raise CliError(Exit.USAGE, f"{file}: there is no such file of settings")
        return None
    try:
        settings = tomllib.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise CliError(Exit.USAGE, f"{file}: {error}") from error
    # A misspelt name in the file is an error, for nothing else would ever tell of it.
    known = sorted({entry.variable for kind in _parts().values() for entry in kind.describe({})})
    for name in settings:
        if name not in known:
            raise CliError(Exit.USAGE, f"{file}: there is no setting {name}{did_you_mean(name, known)}")
    return file


def show(options: argparse.Namespace, out: Output) -> None:
    """`kb config`: every setting, its value and where that came from; never a secret."""
    rows = all_settings(options)
    if not out.answered(rows):
        out.table(
            ["variable", "value", "source", "part", "what it is"],
            [[row.variable, row.value, row.source, ", ".join(row.parts), row.help] for row in rows],
        )


def all_settings(options: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> list[Row]:
    """All settings of all parts, one row a variable, in alphabetical order.

    Raises:
        CliError, SettingsError: as `read`.
    """
    file = config_file(options, environ)
    rows: dict[str, Row] = {}
    for part, kind in _parts().items():
        for entry in kind.describe(environ, file=file):
            new = Row(entry.variable, entry.value, entry.source, entry.help, [])
            parts = rows.setdefault(entry.variable, new).parts
            if part not in parts:
                parts.append(part)
    return [rows[variable] for variable in sorted(rows)]


def _parts() -> dict[str, type[Settings]]:
    from kb_engine.settings import EngineSettings
    from kb_server.settings import ServerSettings

    return {"server": ServerSettings, "engine": EngineSettings}


def client_settings(options: argparse.Namespace) -> ClientSettings:
    """How to ask the engine: the one named, else that of the data folder, which learns that it is used.

    Raises:
        SettingsError, CliError: a setting cannot be used.
    """
    settings = read(ClientSettings, options)
    place = Rendezvous(settings.home / "engine")
    url = settings.engine_url or place.join() or DEFAULT_ENGINE
    key = settings.api_key or (local_token(place.folder) if place.is_at(url) else "")
    return msgspec.structs.replace(settings, engine_url=url, api_key=key)


def engine(options: argparse.Namespace, *, user: str = "") -> EngineClient:
    """A client, to be used as a context manager; `user` as `EngineClient` has it.

    Raises:
        SettingsError, CliError: a setting cannot be used.
    """
    from kb_cli.client import EngineClient
    from kb_server.settings import engine_tls

    settings = client_settings(options)
    url, tls = settings.engine_url, engine_tls(settings.engine_ca)
    # For a message, where this URL is not an engine's: the others that an engine may have.
    configured = read(ClientSettings, options, engine_url=None).engine_url
    listening = Rendezvous(settings.home / "engine").url()
    other = next((each for each in (configured, listening) if each and each != url), DEFAULT_ENGINE)
    return EngineClient(url, settings.api_key, user=user, tls=tls, other_url=other)


def offline_embedder(settings: EngineSettings) -> OfflineEmbedder:
    """The embedder of the settings, for a command that works on a base without an engine.

    Raises:
        CliError: there is no such embedder.
    """
    from kb_engine.embed.offline import OfflineEmbedder

    try:
        return OfflineEmbedder(settings)
    except ValueError as error:
        raise CliError(Exit.USAGE, f"KB_EMBEDDER={settings.embedder!r}: {error}") from error
