"""`kb doctor`: problems of this installation, and advice.

settings ─▶ packages ─▶ data folder ─▶ keys ─▶ engine, with its model and its queue ─▶ server ─▶ clients

Each check is independent, so that a failure does not hide other findings. Nothing is changed.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import stat
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from typing import Literal, TypeAlias

import httpx
import msgspec

from kb_cli import VERSION
from kb_cli.config import ClientSettings, client_settings, config_file, engine, read, server_base
from kb_cli.keys import KeySettings
from kb_cli.output import CliError, Exit, Output, counted
from kb_cli.parts import parts
from kb_cli.state import sandbox_line
from kb_config.installing import install_command
from kb_config.parts import imported
from kb_config.settings import SettingsError
from kb_contracts.access.key_file import KeyFile
from kb_contracts.access.keys import KeysDamaged
from kb_contracts.api.operations import GET_STATUS
from kb_engine.settings import EngineSettings
from kb_server.settings import ServerSettings, engine_tls

Verdict: TypeAlias = Literal["ok", "warning", "error"]
_STYLES: dict[Verdict, str] = {"ok": "green", "warning": "yellow", "error": "red"}
_LEAST_FREE = 1024**3
_PROBE_SECONDS = 5.0
_SOON = timedelta(days=7)
_PACKAGES = {"server": "mcp", "engine": "apsw"}
"""For each extra, a package that only this extra installs."""


class Finding(msgspec.Struct):
    """A finding of one check. `advice` is empty if there is nothing to do."""

    verdict: Verdict
    about: str
    found: str
    advice: str | None = None


Check: TypeAlias = Callable[[argparse.Namespace], Iterator[Finding]]


def run(options: argparse.Namespace, out: Output) -> int:
    """Run all checks; the exit status is 0 if there is no problem."""
    findings = []
    for finding in _findings(options):
        findings.append(finding)
        if not out.as_json:
            line = f"{finding.verdict}\t{finding.about}\t{finding.found}"
            advice = f"\n\t\t{finding.advice}" if finding.advice else ""
            out.text(line + advice, style=_STYLES[finding.verdict])
    out.answered(findings)
    return Exit.FAILED if any(finding.verdict == "error" for finding in findings) else Exit.OK


def _findings(options: argparse.Namespace) -> Iterator[Finding]:
    for check in (*_CHECKS, *(imported(part.check) for part in parts() if part.check)):
        try:
            with suppress(SettingsError, CliError):  # settings that cannot be read: `_settings` reports them
                yield from check(options)
        except OSError as error:  # a folder above it may not be read, or its name is too long
            advice = "name another place in the settings; `kb config` shows them"
            yield Finding("error", "files", f"{error.filename}: {error.strerror}", advice)


def _settings(options: argparse.Namespace) -> Iterator[Finding]:
    try:
        file = config_file(options)
        for kind in (ClientSettings, EngineSettings, ServerSettings):
            read(kind, options)
        engine_tls(client_settings(options).engine_ca)
    except (SettingsError, CliError) as error:
        yield Finding("error", "settings", str(error), "`kb config` shows all settings and their sources")
    else:
        source = f"from {file.resolve()} and the environment" if file else "from the environment"
        yield Finding("ok", "settings", source)


def _packages(_options: argparse.Namespace) -> Iterator[Finding]:
    yield Finding("ok", "kb", f"{VERSION} on Python {platform.python_version()}")
    for extra, package in _PACKAGES.items():
        if find_spec(package) is None:
            advice = f"to run it here: {install_command(extra)}"
            yield Finding("warning", "packages", f"packages of the {extra} are not installed", advice)


def _data_folder(options: argparse.Namespace) -> Iterator[Finding]:
    settings = read(EngineSettings, options)
    home = settings.home
    there = next(folder for folder in (home, *home.parents) if folder.exists())
    if not os.access(there, os.W_OK | os.X_OK):
        advice = "give this user write access, or set KB_HOME to another folder"
        yield Finding("error", "data folder", f"{there} is not writable", advice)
        return
    free = shutil.disk_usage(there).free
    what = f"{home}{'' if home == there else ', created at the first start'}, {free >> 20:,} MiB free"
    if free < _LEAST_FREE:
        yield Finding(
            "error", "data folder", what, "free disk space: without it the engine accepts no documents"
        )
    else:
        yield Finding("ok", "data folder", what)


def _keys(options: argparse.Namespace) -> Iterator[Finding]:
    file = read(KeySettings, options).file
    if not file.exists():
        if _wants_key(options):
            found = f"no key file at {file}, and the running server requires a key"
            yield Finding("warning", "keys", found, "restart kb: it then lets clients in without a key")
        else:
            yield Finding("ok", "keys", "no key file; `kb keys create` creates a key")
        return
    try:
        keys = KeyFile(file).read()
    except KeysDamaged as error:
        yield Finding("error", "keys", str(error), "engine and server do not start until it is repaired")
        return
    mode = stat.S_IMODE(file.stat().st_mode)
    if mode & 0o077:
        words = f"other users may read or change {file}: its mode is {mode:04o}"
        yield Finding("error", "keys", words, f"chmod 600 {file}")
    now = datetime.now(UTC)
    states = Counter(key.state(now) for key in keys)
    what = f"{states['valid']} of {len(keys)} in {file} are valid"
    if states["valid"]:
        yield Finding("ok", "keys", what)
    else:
        advice = "kb keys create NAME; or, to need no key again, stop kb, remove this file, and start kb"
        yield Finding("warning", "keys", f"{what}, and clients need one", advice)
    for key in keys:
        if key.state(now) == "expired":
            advice = f"kb keys revoke {key.name}, or make a new one"
            yield Finding("warning", f"key {key.name}", "has expired", advice)
        elif key.expires is not None and key.revoked is None and key.expires - now < _SOON:
            yield Finding(
                "warning", f"key {key.name}", f"expires on {key.expires:%Y-%m-%d}", "make a new one"
            )


def _wants_key(options: argparse.Namespace) -> bool:
    """True if the running server requires a key that its settings here do not have."""
    try:
        has_key = bool(read(ServerSettings, options).api_key)
        return not has_key and _ask(f"{server_base(options)}/mcp", verify=False).status_code == 401
    except (SettingsError, CliError, httpx.HTTPError):
        return False


def _engine(options: argparse.Namespace) -> Iterator[Finding]:
    try:
        url = client_settings(options).engine_url
        with engine(options) as client:
            status = client.call(GET_STATUS)
    except CliError as error:
        yield Finding("error", "engine", error.message)
        return
    counts = f"{counted(status.documents.total, 'document')}, {counted(status.chunks, 'passage')}"
    yield Finding("ok", "engine", f"{status.version} at {url}: {counts}")
    if status.version != VERSION:
        advice = "install the same version of both if there are problems"
        yield Finding("warning", "version", f"the engine is {status.version}, this command {VERSION}", advice)
    if not isinstance(status.sandbox, msgspec.UnsetType):
        is_whole = status.sandbox.holds and not status.sandbox.missing
        verdict: Verdict = "ok" if is_whole else "warning"
        beyond = None if is_whole else "docs/security.md describes the risks of file readers without it"
        yield Finding(verdict, "sandbox", sandbox_line(status.sandbox), beyond)
    for issue in status.issues:
        yield Finding("error", "engine", issue)
    model = f"{status.model.name}, {'loaded' if status.model.loaded else 'loaded at the first use'}"
    yield Finding("ok", "model", model)
    if status.failures:
        advice = (
            "`kb jobs --status failed` shows the reasons. After a fault of the engine (no model, disk full) "
            "run `kb jobs ID --retry`; after a fault of the file correct it and add it again with the same "
            "path: its failure then no longer counts"
        )
        yield Finding("warning", "jobs", f"{status.failures} failed", advice)
    if not status.storage.is_withheld and status.storage.free_bytes < _LEAST_FREE:
        left = f"{status.storage.free_bytes >> 20:,} MiB free on the fuller disk, of the base or of uploads"
        yield Finding("error", "storage", left, "free disk space, or delete documents")


def _server(options: argparse.Namespace) -> Iterator[Finding]:
    base = server_base(options)
    try:
        try:
            response = _ask(f"{base}/readyz")
        except httpx.ConnectError as error:
            if "CERTIFICATE_VERIFY_FAILED" not in str(error):
                raise
            refused = str(error).partition("verify failed: ")[2].rpartition(" (_ssl")[0]
            advice = "clients must trust it and use a name in it: set that name in KB_PUBLIC_URL"
            yield Finding(
                "warning", "certificate", f"the certificate of {base} is not trusted here: {refused}", advice
            )
            response = _ask(f"{base}/readyz", verify=False)
        answer = response.json()
        reason = answer.get("reason", "") if isinstance(answer, dict) else None
    except httpx.HTTPError as error:
        yield Finding(
            "error", "server", f"no server answers at {base} ({error})", "start it: kb up, or kb serve"
        )
        return
    except ValueError:
        reason = None
    if reason is None or response.status_code not in (200, 503):
        advice = "set KB_MCP_PORT to a free port, or stop the process on this one"
        yield Finding("error", "server", f"the service at {base} is not a server of kb", advice)
    elif response.status_code == 200:
        yield Finding("ok", "server", f"{base}/mcp")
    else:
        yield Finding("error", "server", f"{base} is not ready: {reason}")


def _ask(url: str, *, verify: bool = True) -> httpx.Response:
    # Loading the system's certificates takes longer than the request.
    verify = verify and not url.startswith("http:")
    return httpx.get(url, timeout=_PROBE_SECONDS, trust_env=False, verify=verify)


_CHECKS: tuple[Check, ...] = (_settings, _packages, _data_folder, _keys, _engine, _server)
