"""Settings for every command: flags override the environment, then `kb.toml`, then the defaults."""

from __future__ import annotations

import argparse
import os
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec

from kb_cli.output import CliError, Output, UsageError, did_you_mean
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
    """The settings for a request to an engine; `client_settings` completes the engine's URL."""

    engine_url: Annotated[
        str, Setting("KB_ENGINE_URL", "base URLs of the engine; empty: the engine of the data folder")
    ] = ""
    home: Annotated[Path, Setting("KB_HOME", "data folder")] = Path("~/.local/share/kb")
    api_key: Annotated[str, Setting("KB_API_KEY", "bearer key of the engine", secret=True)] = ""
    engine_ca: Annotated[
        str,
        Setting("KB_ENGINE_CA", "CA certificates for the engine's certificate, in PEM; empty: the system's"),
    ] = ""


class Row(msgspec.Struct):
    """One setting as `kb config` shows it; `parts` are the parts that read it."""

    variable: str
    value: str
    source: str
    help: str
    parts: list[str]


def read(
    kind: type[S], options: argparse.Namespace, *, environ: Mapping[str, str] = os.environ, **flags: Any
) -> S:
    """Return the settings of one part, from `flags`, then from the options of the same names.

    Raises:
        SettingsError: a value is invalid, or the file is unreadable.
        CliError: the file is missing, or names an unknown setting.
    """
    return kind.read(environ, file=config_file(options, environ), **(vars(options) | flags))


def is_set(kind: type[Settings], variable: str, options: argparse.Namespace) -> bool:
    """True if the environment or the file has the setting."""
    entries = kind.describe(os.environ, file=config_file(options))
    return any(entry.variable == variable and entry.source != "default" for entry in entries)


def path_of(name: str) -> Path:
    """Return the path that a user has named, with `~` expanded. `~$a.docx` is a name, not a user's folder."""
    return Path(os.path.expanduser(name))  # noqa: PTH111 - that of `Path` raises if there is no such user


def config_file(options: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the checked settings file: `--config`, otherwise KB_CONFIG, otherwise ./kb.toml if it exists.
    Raises CliError: a named file does not exist, or the file is invalid.
    """
    named = getattr(options, "config", None) or environ.get(FILE_VARIABLE)
    file = path_of(named) if named else DEFAULT_FILE
    if not file.is_file():
        if named:
            raise UsageError(f"{file}: there is no such settings file")
        return None
    try:
        settings = tomllib.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{file}: {error}") from error
    # A misspelt name in the file must be an error, because it would have no other effect.
    removed = {name for kind in _parts().values() for name in kind.removed()}
    known = sorted({entry.variable for kind in _parts().values() for entry in kind.describe({})})
    for name in settings.keys() - removed:
        if name not in known:
            raise UsageError(f"{file}: there is no setting {name}{did_you_mean(name, known)}")
    return file


def show(options: argparse.Namespace, out: Output) -> None:
    """Print every setting, its value and its source; never a secret."""
    rows = all_settings(options)
    if not out.answered(rows):
        out.table(
            ["variable", "value", "source", "part", "what it is"],
            [[row.variable, row.value, row.source, ", ".join(row.parts), row.help] for row in rows],
        )


def all_settings(options: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> list[Row]:
    """Return all settings of all parts, one row for each variable, in alphabetical order.
    Raises CliError, SettingsError: as `read`.
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
    """Return the settings for a request to the engine: the named one, otherwise that of the data folder.

    This process registers as a user of the latter.
    Raises SettingsError, CliError: a setting has an invalid value.
    """
    settings = read(ClientSettings, options)
    place = Rendezvous(settings.home / "engine")
    url = settings.engine_url or place.join() or DEFAULT_ENGINE
    key = settings.api_key or (local_token(place.folder) if place.is_at(url) else "")
    return msgspec.structs.replace(settings, engine_url=url, api_key=key)


def server_base(options: argparse.Namespace) -> str:
    """Return the base URL of the MCP server: of the settings if they name its port or URL, otherwise of the
    server that runs in the data folder. Raises SettingsError, CliError: as `read`.
    """
    from kb_server.services import http_base
    from kb_server.settings import ServerSettings

    settings = read(ServerSettings, options)
    is_named = settings.public_url or (settings.port and is_set(ServerSettings, "KB_MCP_PORT", options))
    return (None if is_named else Rendezvous(settings.home / "server").url()) or http_base(settings)


def engine(options: argparse.Namespace, *, user: str = "") -> EngineClient:
    """Return a client, to be used as a context manager; `user` as in `EngineClient`.
    Raises SettingsError, CliError: a setting has an invalid value.
    """
    from kb_cli.client import EngineClient
    from kb_server.settings import engine_tls

    settings = client_settings(options)
    url, tls = settings.engine_url, engine_tls(settings.engine_ca)
    # For a message, in case no engine is at this URL: the other URLs that an engine may have.
    configured = read(ClientSettings, options, engine_url=None).engine_url
    listening = Rendezvous(settings.home / "engine").url()
    other = next((each for each in (configured, listening) if each and each != url), DEFAULT_ENGINE)
    return EngineClient(url, settings.api_key, user=user, tls=tls, other_url=other)


@contextmanager
def base_failures(*others: type[Exception], advice: str = "") -> Iterator[None]:
    """Convert the failures of a base and its embedder, and `others`, to CliError.

    `advice` follows the message about an embedder that is unavailable.
    """
    from kb_engine.embed.protocol import EmbedderUnavailable, TextRefused
    from kb_engine.start_errors import StartError
    from kb_engine.store.port import BaseRefused

    refusals: tuple[type[Exception], ...] = (BaseRefused, StartError, TextRefused, *others)
    try:
        yield
    except EmbedderUnavailable as error:
        raise CliError(f"{error}{advice}") from error
    except refusals as error:
        raise CliError(str(error)) from error


def offline_embedder(settings: EngineSettings) -> OfflineEmbedder:
    """Return the embedder of the settings, for a command that works on a base without an engine.
    Raises CliError: there is no such embedder, or its model cannot be downloaded.
    """
    from kb_engine.embed.offline import OfflineEmbedder
    from kb_engine.start_errors import StartError

    try:
        return OfflineEmbedder(settings)
    except ValueError as error:
        raise UsageError(f"KB_EMBEDDER={settings.embedder!r}: {error}") from error
    except StartError as error:
        raise CliError(str(error)) from error
