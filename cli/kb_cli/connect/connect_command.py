"""`kb connect`: the difference, a confirmation, the file."""

from __future__ import annotations

import argparse
import json
import os
import stat
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from difflib import unified_diff
from pathlib import Path
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

import httpx
import msgspec
import tomlkit

from kb_cli.config import is_set, read
from kb_cli.connect.clients import CLIENTS, Client, Entry, Machine, Server
from kb_cli.connect.editing import NotEditable, member_of, with_member, without_member
from kb_cli.output import CliError, Exit, Output, confirmed
from kb_config.settings import SettingsError
from kb_server.services import http_base
from kb_server.settings import ServerSettings
from kb_server.toolsets import EXTRA, EXTRA_USE, checked_names

_PROBE_SECONDS = 2.0
_PRIVATE = 0o600
_SKILL = Path(__file__).with_name("SKILL.md")


State: TypeAlias = Literal["connected", "set otherwise", "not connected", "no file", "file not readable"]


class Known(msgspec.Struct):
    """A client, and the state of kb in its configuration."""

    client: str
    state: State
    file: str


def run(options: argparse.Namespace, out: Output) -> None:
    """Add kb to a client's configuration, remove it, or list the clients."""
    machine = Machine(Path.home(), os.environ)
    server = server_of(options, url=None if options.endpoint is None else _checked(options.endpoint))
    if options.client is None:
        _list(machine, options.name, server, out)
        return
    client = CLIENTS[options.client]
    file = client.file(machine).resolve()  # a link remains: its target is written
    entry = client.entry(server)
    if options.endpoint is not None and server.url not in entry.values():
        raise CliError(
            Exit.USAGE,
            f"{client.title} does not support endpoints: it starts kb stdio, which connects to an engine. "
            "Set KB_ENGINE_URL to the engine's URL and KB_API_KEY to its key, and leave out --endpoint, or "
            "connect another client",
        )
    entries = {
        options.name if toolset == "kb" else toolset: client.entry(server.of(toolset))
        for toolset in _checked_toolsets(options.toolsets)
    }
    if options.print:
        _show(client, entries, file, out)
        return
    before = after = _text_of(file)
    try:
        for name, each in entries.items():
            if options.undo:
                after = without_member(after, client.format, client.place, name)
            else:
                after = with_member(after, client.format, client.place, name, each)
    except NotEditable as error:
        hint = f"edit it by hand: kb connect {options.client} --print shows the entry"
        raise CliError(Exit.FAILED, f"{file} {error}; {hint}") from error
    skill = None if client.skill is None else client.skill(machine).resolve()
    own, found = _SKILL.read_text("utf-8"), "" if skill is None else _text_of(skill)
    change_skill = skill is not None and found == (own if options.undo else "")
    if after != before or change_skill:
        if not out.as_json:
            if after != before:
                out.text(_difference(file, before, after, server))
            if change_skill:
                out.text(f"{'---' if options.undo else '+++'} {skill} (the skill)")
        if not options.yes and not confirmed(f"Change {file if after != before else skill}?"):
            raise CliError(Exit.FAILED, f"{file} is unchanged")
        if options.undo and _is_own(file, before, client, entries):
            _remove(file, before)
        elif after != before:
            _write(file, before, after)
        if skill is not None and change_skill:
            _write_skill(skill, found, "" if options.undo else own)
    if skill is not None and found not in ("", own):
        out.note(f"{skill} differs from the skill of this kb and is unchanged; to renew it, remove it first")
    known = Known(options.client, "not connected" if options.undo else "connected", str(file))
    if not out.answered(known):
        change = "configuration unchanged"
        if after != before:
            done = "removed" if options.undo else "configured"
            change = f"{' and '.join(entries)} {done}, effective at the next start"
        out.text(f"{client.title}: {change}.", style="green")
        if not options.undo and after != before and EXTRA not in entries:
            out.text(f"{EXTRA_USE}: kb connect {options.client} --toolsets {EXTRA}")
    if not options.undo and server.url in entry.values() and not _answers(server.url):
        out.note(f"No server answers at {server.url} yet: start it with kb up")


def _checked_toolsets(names: str) -> list[str]:
    try:
        return checked_names([name.strip() for name in names.split(",") if name.strip()])
    except SettingsError as error:
        raise CliError(Exit.USAGE, f"--toolsets: {error}") from error


def _checked(endpoint: str) -> str:
    with suppress(ValueError):
        url = urlsplit(endpoint)
        if url.scheme in ("http", "https") and url.hostname and url.port != 0:
            return endpoint
    raise CliError(
        Exit.USAGE, f"--endpoint {endpoint!r} is not a URL: write it like http://127.0.0.1:3000/mcp"
    )


def _list(machine: Machine, name: str, server: Server, out: Output) -> None:
    known = [
        Known(key, _state(client, machine, name, server), str(client.file(machine)))
        for key, client in CLIENTS.items()
    ]
    if not out.answered(known):
        out.table(["client", "kb", "file"], [[each.client, each.state, each.file] for each in known])


def _state(client: Client, machine: Machine, name: str, server: Server) -> State:
    try:
        text = _text_of(client.file(machine))
        if not text:
            return "no file"
        found = member_of(text, client.format, client.place, name)
    except (CliError, NotEditable):
        return "file not readable"
    if found is None:
        return "not connected"
    return "connected" if found == client.entry(server) else "set otherwise"


def server_of(options: argparse.Namespace, *, url: str | None = None) -> Server:
    """Return the server of the settings. If they name no engine, `kb stdio` starts that of the data folder.

    Raises:
        SettingsError, CliError: as `read`.
    """
    settings = read(ServerSettings, options)
    if is_set(ServerSettings, "KB_ENGINE_URL", options):
        engine = {"KB_ENGINE_URL": settings.engine_url}
        if settings.engine_ca:
            engine["KB_ENGINE_CA"] = str(Path(settings.engine_ca).absolute())
    else:
        engine = {"KB_HOME": str(settings.home.absolute())}
    return Server(url or f"{http_base(settings)}/mcp", settings.api_key, engine, settings.engine_api_key)


def _show(client: Client, entries: Entry, file: Path, out: Output) -> None:
    """Print the entry for manual configuration, with the key."""
    value: Entry = entries
    for key in reversed(client.place):
        value = {key: value}
    if not out.answered(value):
        text = tomlkit.dumps(value) if client.format == "toml" else json.dumps(value, indent=2)
        out.text(f"{file}:\n\n{text.rstrip()}")


def _difference(file: Path, before: str, after: str, server: Server) -> str:
    """Return the difference without keys, since a terminal's content may be seen and recorded."""
    lines = "".join(unified_diff(before.splitlines(True), after.splitlines(True), str(file), str(file), n=2))
    for key in filter(None, (server.key, server.engine_key)):
        lines = lines.replace(key, "…")
    return lines


def _text_of(file: Path) -> str:
    """Return the file's text, or an empty text if the file does not exist."""
    try:
        return file.read_bytes().decode()  # preserves line ends
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        raise CliError(Exit.FAILED, f"{file}: {error}") from error


def _write(file: Path, before: str, text: str) -> None:
    """Replace the content of the file atomically.

    Raises:
        CliError: another program has changed it, or it cannot be written; it is then unchanged.
    """
    try:
        _check_unchanged(file, before)
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=file.parent, prefix=file.name) as folder:
            new = Path(folder, file.name)
            new.touch(_PRIVATE)  # it may hold a key
            with suppress(FileNotFoundError):
                new.chmod(file.stat().st_mode & 0o777)
            with new.open("wb") as opened:
                opened.write(text.encode())
                opened.flush()
                os.fsync(opened.fileno())
            new.replace(file)
    except OSError as error:
        raise CliError(Exit.FAILED, f"{file}: {error.strerror or error}; it is unchanged") from error


def _write_skill(file: Path, before: str, text: str) -> None:
    """Write or remove the skill; its folder goes when it is empty. Raises `CliError` as `_write` does."""
    if text:
        _write(file, before, text)
        return
    _remove(file, before)
    with suppress(OSError):
        file.parent.rmdir()


def _is_own(file: Path, text: str, client: Client, names: Iterable[str]) -> bool:
    """True if this command made the whole file: with its mode, its layout and no other content."""
    try:
        made = ""
        for name in names:
            entry = member_of(text, client.format, client.place, name)
            if not isinstance(entry, dict):
                return False
            made = with_member(made, client.format, client.place, name, entry)
        return stat.S_IMODE(file.stat().st_mode) == _PRIVATE and text == made
    except (NotEditable, OSError):
        return False


def _remove(file: Path, before: str) -> None:
    """Remove the file. Raises `CliError` as `_write` does."""
    try:
        _check_unchanged(file, before)
        file.unlink()
    except OSError as error:
        raise CliError(Exit.FAILED, f"{file}: {error.strerror or error}; it is unchanged") from error


def _check_unchanged(file: Path, before: str) -> None:
    if _text_of(file) != before:
        raise CliError(Exit.FAILED, f"{file} was changed meanwhile; run it again")


def _answers(url: str) -> bool:
    with suppress(httpx.HTTPError):
        # Only a test for a response, without the key: the client itself will check the certificate.
        httpx.get(url, timeout=_PROBE_SECONDS, trust_env=False, verify=False)  # noqa: S501
        return True
    return False
