"""`kb keys`: create, list, revoke and rotate keys."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import msgspec

from kb_cli.config import engine, read
from kb_cli.documents import check_collections
from kb_cli.output import CliError, NotFound, Output, UsageError
from kb_config.settings import Setting, Settings, SettingsError
from kb_config.shared import Keys, keys_file
from kb_contracts.access.key_file import KeyFile, KeyRefused, rights_of
from kb_contracts.access.keys import Key, KeysDamaged, Quotas
from kb_server.collection_tags import is_name, tag_of
from kb_server.tool import ToolError

_UNITS = {"m": 60, "h": 3_600, "d": 86_400, "w": 7 * 86_400}
_PERIOD = re.compile(r"([0-9]{1,5})([mhdw])")


class KeySettings(Settings, frozen=True, kw_only=True):
    """The location of the keys."""

    home: Annotated[Path, Setting("KB_HOME", "data folder")] = Path("~/.local/share/kb")
    keys: Keys = ""

    @property
    def file(self) -> Path:
        """The key file."""
        return keys_file(self.keys, self.home)


class KeyView(msgspec.Struct, kw_only=True):
    """A key for display. `token` is present once, when it is created."""

    id: str
    name: str
    state: str
    created: datetime
    expires: datetime | None
    revoked: datetime | None
    rights: list[str]
    collections: Sequence[str] | None
    toolsets: Sequence[str] | None
    quotas: Quotas
    token: str | msgspec.UnsetType = msgspec.UNSET


def run(options: argparse.Namespace, out: Output) -> None:
    """Carry out the `action`."""
    file = KeyFile(read(KeySettings, options).file)
    if (options.action == "list") != (options.key is None):
        words = "takes no name" if options.action == "list" else "needs the name of a key"
        raise UsageError(f"{options.action} {words}")
    try:
        match options.action:
            case "create":
                is_first = not file.read()
                key, token = _create(file, options)
                _show_token(out, file, key, token, is_first=is_first)
                _note_absent([each for each in key.collections or () if is_name(each)], options, out)
                _note_unusual(key, out)
            case "rotate":
                key, token = file.rotate(
                    options.key, _period(options.grace) if options.grace else timedelta()
                )
                _show_token(out, file, key, token)
            case "revoke":
                key = file.revoke(options.key)
                if not out.answered(_view(key)):
                    out.text(f"The key {key.name} is revoked.")
                    if not any(_view(each).state == "valid" for each in file.read()):
                        out.note("No key is valid now, and one is still needed: kb keys create NAME")
            case _:
                _list(file.read(), out)
    except (KeyRefused, KeysDamaged) as error:
        raise CliError(str(error)) from error
    except OSError as error:
        raise CliError(f"{file.path}: {error.strerror or error}") from error


def _note_absent(names: Sequence[str], options: argparse.Namespace, out: Output) -> None:
    """Report collections that do not exist, if an engine answers: the key is created in any case."""
    if not names:
        return
    with suppress(CliError, SettingsError), engine(options) as client, client.optional():
        for name in names:
            try:
                check_collections(client, [tag_of(name)], advice="; the key reaches it once it exists")
            except NotFound as error:
                out.note(error.message)


def _note_unusual(key: Key, out: Output) -> None:
    """Report collections that kb itself never creates; clients of the engine's API can."""
    for pattern in key.collections or ():
        try:
            if begins := pattern.removesuffix("*"):
                tag_of(begins)
        except ToolError:
            out.note(
                f"{pattern}: not a name that kb creates: names are lower-case letters, digits, hyphens and "
                "underscores. Only other clients of the engine's API can use it."
            )


def _create(file: KeyFile, options: argparse.Namespace) -> tuple[Key, str]:
    return file.create(
        options.key,
        rights=rights_of(_split([options.rights])),
        expires=None if options.expires is None else datetime.now(UTC) + _period(options.expires),
        collections=_given(options.collection),
        toolsets=_given(options.toolset),
        quotas=Quotas(
            options.calls_per_minute,
            options.bytes_per_day,
            options.documents_per_day,
            options.uploads_in_flight,
        ),
    )


def _show_token(out: Output, file: KeyFile, key: Key, token: str, *, is_first: bool = False) -> None:
    view = _view(key)
    view.token = token
    if out.answered(view):
        return
    out.text(token)
    out.note(f"The token of {key.name} is shown only now; {file.path} has only its hash.")
    if is_first:
        out.note(
            "From now on all clients and the pages need a key, your own agents too. Commands of kb on this "
            "machine need none."
        )


def _list(keys: Sequence[Key], out: Output) -> None:
    views = [_view(key) for key in keys]
    if out.answered(views):
        return
    rows = [
        (
            view.name,
            view.id,
            view.state,
            ", ".join(view.rights),
            "all" if view.collections is None else ", ".join(view.collections) or "none",
            "all" if view.toolsets is None else ", ".join(view.toolsets),
            "" if view.expires is None else f"{view.expires:%Y-%m-%d %H:%M}",
        )
        for view in views
    ]
    columns = ("name", "id", "state", "rights", "collections", "toolsets", "expires (UTC)")
    out.table(columns, rows, title="Keys")


def _view(key: Key) -> KeyView:
    same = {name: getattr(key, name) for name in KeyView.__struct_fields__ if name in Key.__struct_fields__}
    return KeyView(**same | {"state": key.state(datetime.now(UTC)), "rights": sorted(key.rights)})


def _given(values: list[str] | None) -> tuple[str, ...] | None:
    return None if values is None else _split(values)


def _split(values: Sequence[str]) -> tuple[str, ...]:
    return tuple(part.strip() for value in values for part in value.split(",") if part.strip())


def _period(text: str) -> timedelta:
    found = _PERIOD.fullmatch(text)
    if found is None or not int(found[1]):
        raise UsageError(f"{text!r} is not a period: write it like 30m, 12h, 90d or 4w")
    return timedelta(seconds=int(found[1]) * _UNITS[found[2]])
