"""`kb connect`: the difference, a confirmation, the file."""

from __future__ import annotations

import argparse
import json
import os
import re
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from difflib import unified_diff
from pathlib import Path
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

import httpx
import msgspec
import tomlkit

from kb_cli.config import is_set, read, server_base
from kb_cli.connect.clients import CLIENTS, Client, Entry, Machine, Server, authorization, leads_to, merged
from kb_cli.connect.editing import NotEditable, member_of, nested, with_member, without_member
from kb_cli.output import CliError, Output, UsageError, confirmed
from kb_config.settings import SettingsError
from kb_server.settings import ServerSettings
from kb_server.toolsets import EXTRA, EXTRA_USE, checked_names

_PROBE_SECONDS = 2.0
_PRIVATE = 0o600
_NAME = r"(?:authorization|key|token|secret|password)[\w-]{0,64}"
_VALUE = (
    r""""{3}.*?"{3}|'{3}.*?'{3}|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|'[^']*'|"""
    r"""(?:(?:Bearer|Basic)\s+)?[^\s"',;&\[\]{}]+"""
)
_SECRET = re.compile(
    rf"""({_NAME}["']?\s*[:=]\s*|--[\w-]{{0,64}}{_NAME}["']\s*,\s*)({_VALUE})|(Bearer\s+)([^\s"']+)""",
    re.IGNORECASE | re.DOTALL,
)
"""A name and its secret value in JSON, TOML, an argument or a header."""
_SKILL = Path(__file__).with_name("SKILL.md")


State: TypeAlias = Literal[
    "connected",
    "key missing",
    "key refused",
    "set otherwise",
    "not connected",
    "no file",
    "file not readable",
]
ADVICE = "with a key that kb keys create printed, run: KB_MCP_API_KEY=KEY kb connect {}"
"""The remedy for a key that is missing or refused, with the name of the client."""


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
        raise UsageError(
            f"{client.title} does not support endpoints: it starts kb stdio, which connects to an engine. "
            "Set KB_ENGINE_URL to the engine's URL and KB_API_KEY to its key, and leave out --endpoint, or "
            "connect another client"
        )
    servers = {
        options.name if toolset == "kb" else toolset: server.of(toolset)
        for toolset in _checked_toolsets(options.toolsets)
    }
    entries = {name: client.entry(each) for name, each in servers.items()}
    if options.print:
        _show(client, entries, file, out)
        return
    before = after = _text_of(file)
    try:
        for name, each in entries.items():
            present = member_of(after, client.format, client.place, name)
            entries[name] = merged(present, each)
            if options.undo:
                after = without_member(after, client.format, client.place, name)
            elif present != entries[name]:
                after = with_member(after, client.format, client.place, name, entries[name])
    except NotEditable as error:
        hint = f"edit it by hand: kb connect {options.client} --print shows the entry"
        raise CliError(f"{file} {error}; {hint}") from error
    skill = None if client.skill is None else client.skill(machine).resolve()
    own, found = _SKILL.read_text("utf-8"), "" if skill is None else _text_of(skill)
    change_skill = skill is not None and found == (own if options.undo else "")
    if after != before or change_skill:
        if not out.as_json:
            if after != before:
                out.text(_difference(file, before, after))
            if change_skill:
                out.text(f"{'---' if options.undo else '+++'} {skill} (the skill)")
        if not options.yes and not confirmed(f"Change {file if after != before else skill}?"):
            raise CliError(f"{file} is unchanged")
        if options.undo and _is_own(file, before, client, entries):
            _remove(file, before)
        elif after != before:
            _write(file, before, after)
        if skill is not None and change_skill:
            _write_skill(skill, found, "" if options.undo else own)
    if skill is not None and found not in ("", own):
        out.note(f"{skill} differs from the skill of this kb and is unchanged; to renew it, remove it first")
    state: State | None = "not connected"
    if not options.undo:
        states = [_reach(servers[name], each) for name, each in entries.items()]
        state = next((each for each in states if each != "connected"), "connected")
    known = Known(options.client, state or "connected", str(file))
    if not out.answered(known):
        change = "configuration unchanged"
        if after != before:
            done = "removed" if options.undo else "configured"
            change = f"{' and '.join(entries)} {done}, effective at the next start"
        out.text(f"{client.title}: {change}.", style="green")
        if not options.undo and after != before and EXTRA not in entries:
            out.text(f"{EXTRA_USE}: kb connect {options.client} --toolsets {EXTRA}")
    if state is None:
        out.note(f"No server answers at {server.url} yet: start it with kb up")
    elif state.startswith("key"):
        out.note(f"The server at {server.url} refuses this client, {state}: {ADVICE.format(options.client)}")


def _checked_toolsets(names: str) -> list[str]:
    try:
        return checked_names([name.strip() for name in names.split(",") if name.strip()])
    except SettingsError as error:
        raise UsageError(f"--toolsets: {error}") from error


def _checked(endpoint: str) -> str:
    with suppress(ValueError):
        url = urlsplit(endpoint)
        if url.scheme in ("http", "https") and url.hostname and url.port != 0:
            return endpoint
    raise UsageError(f"--endpoint {endpoint!r} is not a URL: write it like http://127.0.0.1:3000/mcp")


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
    return state_of(client, found, server)


def state_of(client: Client, found: object, server: Server) -> State:
    """Return the state of an entry: its address is compared, and its key shown to the server."""
    if not (isinstance(found, dict) and leads_to(found, client.entry(server))):
        return "set otherwise"
    return _reach(server, found) or "connected"


def _reach(server: Server, entry: Entry) -> State | None:
    """Return the state of an entry by the server's answer to its key, or None without an answer."""
    key = authorization(entry)
    if server.url not in entry.values() or key is None:
        return "connected"
    # A key goes only to a server whose certificate is trusted here. For another one the test is for an answer
    # alone: the client itself will check the certificate.
    for sent in (key, "") if key else ("",):
        with (
            suppress(httpx.HTTPError),
            httpx.stream(
                "GET",
                server.url,
                headers={"Authorization": sent} if sent else {},
                timeout=_PROBE_SECONDS,
                trust_env=False,
                verify=bool(sent) and server.url.startswith("https:"),
            ) as answer,
        ):
            # A client without a key may sign in where the server names an issuer.
            signs_in = not key and "resource_metadata" in answer.headers.get("WWW-Authenticate", "")
            if answer.status_code != 401 or sent != key or signs_in:
                return "connected"
            return "key refused" if key else "key missing"
    return None


def server_of(options: argparse.Namespace, *, url: str | None = None) -> Server:
    """Return the server of the settings. If they name no engine, `kb stdio` starts that of the data folder.
    Raises SettingsError, CliError: as `read`.
    """
    settings = read(ServerSettings, options)
    if is_set(ServerSettings, "KB_ENGINE_URL", options):
        engine = {"KB_ENGINE_URL": settings.engine_url}
        if settings.engine_ca:
            engine["KB_ENGINE_CA"] = str(Path(settings.engine_ca).absolute())
    else:
        engine = {"KB_HOME": str(settings.home.absolute())}
    return Server(url or f"{server_base(options)}/mcp", settings.api_key, engine, settings.engine_api_key)


def _show(client: Client, entries: Entry, file: Path, out: Output) -> None:
    """Print the entry for manual configuration, with the key."""
    value = nested(client.place, entries)
    if not out.answered(value):
        text = tomlkit.dumps(value) if client.format == "toml" else json.dumps(value, indent=2)
        out.text(f"{file}:\n\n{text.rstrip()}")


def _difference(file: Path, before: str, after: str) -> str:
    """Return the difference without keys, since a terminal's content may be seen and recorded."""
    old, new = before.splitlines(True), after.splitlines(True)
    printed: dict[str, str] = {}
    for text in (before, after):
        # Masked as a whole, since a value may stand below its name.
        hidden = _SECRET.sub(_masked, text)
        for line, masked in zip(text.splitlines(True), hidden.splitlines(True), strict=True):
            printed[line] = masked if masked != line else printed.get(line, line)
    lines = unified_diff(old, new, str(file), str(file), n=2)
    return "".join(line[0] + printed.get(line[1:], line[1:]) for line in lines)


def _masked(found: re.Match[str]) -> str:
    """Return the name without its value, on as many lines."""
    name, value = (found[1], found[2]) if found[1] else (found[3], found[4])
    quote = value[0] if value[0] in "\"'" else ""
    return name + quote + "…" + "\n" * (len(value.splitlines()) - 1) + quote


def _text_of(file: Path) -> str:
    """Return the file's text, or an empty text if the file does not exist."""
    try:
        return file.read_bytes().decode()  # preserves line ends
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        raise CliError(f"{file}: {error}") from error


def _write(file: Path, before: str, text: str) -> None:
    """Replace the content of the file atomically. Raises `CliError` as `_changing` does."""
    with _changing(file, before):
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


def _write_skill(file: Path, before: str, text: str) -> None:
    """Write or remove the skill; its folder goes when it is empty. Raises `CliError` as `_changing` does."""
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
    """Remove the file. Raises `CliError` as `_changing` does."""
    with _changing(file, before):
        file.unlink()


@contextmanager
def _changing(file: Path, before: str) -> Iterator[None]:
    """Check that the file is as it was read, and run the block, which changes it.
    Raises CliError: another program has changed the file, or the block failed; it is then unchanged.
    """
    if _text_of(file) != before:
        raise CliError(f"{file} was changed meanwhile; run it again")
    try:
        yield
    except OSError as error:
        raise CliError(f"{file}: {error.strerror or error}; it is unchanged") from error
