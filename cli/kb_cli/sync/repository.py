"""A source: a Git repository, read by the program `git` from a bare copy in the data folder.

Nothing of a repository is run or checked out: no hooks, filters, submodules or Git LFS. The configuration of
the user and the machine is not read, and the protocols are https, ssh and file. The host must have public
addresses, as for `kb add URL`, and a connection over https goes to the checked address.
"""

from __future__ import annotations

import base64
import fcntl
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from kb_cli.output import CliError, Exit
from kb_cli.sync.source import Entry, LeftOut, Remote, Unavailable
from kb_cli.web import Fetched, NotFetched, allowed_addresses, is_of_the_internet

_SETTINGS = (
    ("protocol.ext.allow", "never"),
    ("core.hooksPath", os.devnull),
    ("http.followRedirects", "false"),
    ("http.proxy", ""),
    ("http.lowSpeedLimit", "1000"),
    ("http.lowSpeedTime", "60"),
    ("gc.autoDetach", "false"),
)
_ENVIRONMENT = {
    "GIT_ALLOW_PROTOCOL": "https:ssh:file",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_SSH_COMMAND": "ssh -o BatchMode=yes",
    "LC_ALL": "C",
}
_FETCH_SECONDS = 3600.0
_READ_SECONDS = 600.0
_TIP = "refs/kb/tip"
_NO_REF = re.compile(r"[-+]|.*([\x00-\x20\x7f:^~?*\[\\]|\.\.|@\{)", re.DOTALL)
_FILES = ("100644", "100755", "100664")
_LFS = b"version https://git-lfs.github.com/spec/"


class Repository(Remote):
    """The files of a branch, tag or commit. `place` is `git+https://...`, `git+ssh://...` or a local path.

    Raises:
        CliError: the address or the ref is invalid.
    """

    def __init__(
        self, place: str, ref: str, state: Path, *, private: bool, credentials: Mapping[str, str]
    ) -> None:
        if "://" not in place and not place.startswith("git+"):
            place = f"git+file://{Path(place).expanduser().resolve()}"
        self._url = place.removeprefix("git+")
        parts = urlsplit(self._url)
        self._scheme, self._host = parts.scheme, parts.hostname or ""
        self._port = parts.port or (22 if parts.scheme == "ssh" else 443)
        if parts.scheme not in ("https", "ssh", "file") or not place.isprintable():
            raise CliError(
                Exit.USAGE, f"{place}: a repository is git+https://, git+ssh://, or a folder with --ref"
            )
        if parts.password or (parts.username and parts.scheme == "https"):
            raise CliError(
                Exit.USAGE, "a user name or password stands in the file of --credentials, not in the URL"
            )
        if parts.scheme != "file" and (not self._host or self._host.startswith("-")):
            raise CliError(Exit.USAGE, f"{place} names no host")
        if not ref or _NO_REF.match(ref):
            raise CliError(Exit.USAGE, f"{ref!r} is no branch, tag or commit")
        super().__init__(place, f"{place.rstrip('/')}!/", state)
        self._ref, self._private, self._copy = ref, private, state.with_suffix(".git")
        self._blobs: dict[str, str] = {}
        self._secret = {}
        if credentials:
            pair = f"{credentials.get('user', 'git')}:{credentials.get('password', '')}".encode()
            header = f"Authorization: Basic {base64.b64encode(pair).decode()}"
            # In the environment: the arguments of a process are visible to all users.
            self._secret = {
                "GIT_CONFIG_COUNT": "1",
                "GIT_CONFIG_KEY_0": f"http.{parts.scheme}://{parts.netloc}/.extraHeader",
                "GIT_CONFIG_VALUE_0": header,
            }

    def entries(self) -> Iterator[Entry]:
        """Fetch the ref, and yield its files; links and submodules are none."""
        self._fetch()
        self._blobs.clear()
        for row in self._git("ls-tree", "-r", "-z", "-l", "--full-tree", _TIP).split(b"\0"):
            if not row:
                continue
            facts, _, path = row.partition(b"\t")
            mode, _, blob, size = facts.decode("ascii").split()
            if mode in _FILES:
                source = self.prefix + os.fsdecode(path)
                self._blobs[source] = blob
                yield Entry(source, int(size) if size.isdigit() else 0, blob)

    def fetched(self, source: str, folder: Path, conditions: Mapping[str, str]) -> Fetched:  # noqa: ARG002
        """Return a file of the copy."""
        path = folder / PurePosixPath(source).name
        with path.open("wb") as file:
            self._git("cat-file", "blob", self._blobs[source], to=file.fileno())
        with path.open("rb") as file:
            if file.read(len(_LFS)) == _LFS:
                raise LeftOut("its content is in Git LFS, which is not fetched")
        return Fetched(path, {})

    def _fetch(self) -> None:
        settings = []
        if self._scheme != "file":
            try:
                found = allowed_addresses(
                    self._host, self._port, (lambda _: True) if self._private else is_of_the_internet
                )
            except NotFetched as error:
                raise Unavailable(str(error)) from error
            pinned = ",".join(f"[{each}]" if each.version == 6 else str(each) for each in found)
            settings = ["-c", f"http.curloptResolve={self._host}:{self._port}:{pinned}"]
        if not (self._copy / "HEAD").exists():
            self._run(["git", "init", "--quiet", "--bare", "--template=", str(self._copy)])
        with (self._copy / "kb.lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for left in ("shallow.lock", f"{_TIP}.lock"):  # by a git that was killed
                (self._copy / left).unlink(missing_ok=True)
            options = [
                "--quiet",
                "--depth=1",
                "--no-tags",
                "--no-recurse-submodules",
                "--no-write-fetch-head",
            ]
            self._git(
                "fetch",
                *options,
                "--",
                self._url,
                f"+{self._ref}:{_TIP}",
                settings=settings,
                seconds=_FETCH_SECONDS,
            )

    def _git(
        self,
        *arguments: str,
        settings: list[str] | None = None,
        to: int | None = None,
        seconds: float = _READ_SECONDS,
    ) -> bytes:
        switches = [each for name, value in _SETTINGS for each in ("-c", f"{name}={value}")]
        command = ["git", "--git-dir", str(self._copy), *switches, *(settings or ()), *arguments]
        return self._run(command, to=to, seconds=seconds)

    def _run(self, command: list[str], *, to: int | None = None, seconds: float = _READ_SECONDS) -> bytes:
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "SSH_AUTH_SOCK") if name in os.environ}
        try:
            done = subprocess.run(  # noqa: S603 - arguments are checked, and none begins with a dash
                command,
                env=kept | _ENVIRONMENT | self._secret,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if to is None else to,
                stderr=subprocess.PIPE,
                timeout=seconds,
                check=True,
            )
        except FileNotFoundError as error:
            raise CliError(Exit.FAILED, "the program git is not installed") from error
        except subprocess.CalledProcessError as error:
            lines = error.stderr.decode("utf-8", "replace").strip().splitlines()
            raise Unavailable(lines[0] if lines else f"git ends with {error.returncode}") from error
        except subprocess.TimeoutExpired as error:
            raise Unavailable(f"git takes more than {seconds:g} seconds") from error
        return done.stdout or b""
