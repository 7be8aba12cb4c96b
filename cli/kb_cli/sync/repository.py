"""A source: a Git repository, read by the program `git` from a bare copy in the data folder.

Nothing of a repository is run or checked out: no hooks, filters, submodules or Git LFS. The configuration of
the user and the machine is not read, and the protocols are https, ssh and file. The host must have public
addresses, as for `kb add URL`, and a connection over https goes to the checked address. Git's files and
output are bounded: a pack has no size before its end, and a small one may hold a tree of any number of files.
"""

from __future__ import annotations

import base64
import fcntl
import os
import re
import resource
import signal
import subprocess
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path, PurePosixPath
from tempfile import TemporaryFile
from typing import IO
from urllib.parse import urlsplit

from kb_cli.config import path_of
from kb_cli.output import CliError, UsageError
from kb_cli.sync.source import Entry, LeftOut, Remote, Unavailable
from kb_cli.web import Fetched, NotFetched, address_rule, allowed_addresses

_SETTINGS = (
    ("protocol.ext.allow", "never"),
    ("core.hooksPath", os.devnull),
    ("http.followRedirects", "false"),
    ("http.proxy", ""),
    ("http.lowSpeedLimit", "1000"),
    ("http.lowSpeedTime", "60"),
    ("fetch.unpackLimit", "1"),
    ("gc.autoDetach", "false"),
)
_ENVIRONMENT = {
    "GIT_ALLOW_PROTOCOL": "https:ssh:file",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "HOME": os.devnull,  # its .netrc has credentials; ssh takes its folder from the user database
    "GIT_SSH_COMMAND": "ssh -o BatchMode=yes",
    "LC_ALL": "C",
}
_MOST_SECONDS = 3600.0
MOST_PACKED = 4 << 30
"""Maximum size of a pack, in bytes."""
MOST_LISTED = 256 << 20
"""Maximum size of the listing of a commit, in bytes."""
_READ_OF_ERRORS = 10_000
_OLDEST = (2, 37)
"""The first version of git that connects to a given address."""
_CUT = "invalid index-pack output"
_TIP = "refs/kb/tip"
# Forms that resolver, Git and curl read alike, so that the pinned name is the requested one.
_HOST = re.compile(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?|[0-9a-f:.]+")
_NO_REF = re.compile(r"[-+]|.*([\x00-\x20\x7f:^~?*\[\\]|\.\.|@\{)", re.DOTALL)
_FILES = ("100644", "100755", "100664")
_LFS = b"version https://git-lfs.github.com/spec/"


class Repository(Remote):
    """The files of a branch, tag or commit. `place` is `git+https://...`, `git+ssh://...` or a local path.
    Raises CliError: the address or the ref is invalid.
    """

    def __init__(
        self, place: str, ref: str, home: Path, *, private: bool, credentials: Mapping[str, str]
    ) -> None:
        if "://" not in place and not place.startswith("git+"):
            place = f"git+file://{path_of(place).resolve()}"
        self._url = place.removeprefix("git+")
        parts = urlsplit(self._url)
        self._scheme, self._host = parts.scheme, parts.hostname or ""
        self._port = parts.port or (22 if parts.scheme == "ssh" else 443)
        if parts.scheme not in ("https", "ssh", "file") or not place.isprintable():
            raise UsageError(f"{place}: a repository is git+https://, git+ssh://, or a folder with --ref")
        if parts.scheme != "file" and not _HOST.fullmatch(self._host):
            raise UsageError(f"{place} names no host in ASCII; an international name is written as xn--...")
        if credentials and parts.scheme != "https":
            raise UsageError(f"--credentials are for a repository over https, not for {place}")
        if not ref or _NO_REF.match(ref):
            raise UsageError(f"{ref!r} is no branch, tag or commit")
        super().__init__(place, f"{place.rstrip('/')}!/", home)
        self._ref, self._copy = ref, self._cache.with_suffix(".git")
        self._is_allowed = address_rule(private=private)
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
        commit = self._fetch()
        self._blobs.clear()
        for row in self._git("ls-tree", "-r", "-z", "-l", "--full-tree", commit).split(b"\0"):
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
            self._git("cat-file", "blob", self._blobs[source], to=file)
        with path.open("rb") as file:
            if file.read(len(_LFS)) == _LFS:
                raise LeftOut("its content is in Git LFS, which is not fetched")
        return Fetched(path, {})

    def _fetch(self) -> str:
        """Fetch the ref, and return its object: another run may soon fetch another ref of the repository."""
        settings = []
        if self._scheme != "file":
            version = re.search(rb"(\d+)\.(\d+)", self._run(["git", "version"]))
            if version is None or tuple(map(int, version.groups())) < _OLDEST:
                raise CliError("git 2.37 or later is needed for repositories of other machines")
            try:
                found = allowed_addresses(self._host, self._port, self._is_allowed)
            except NotFetched as error:
                raise Unavailable(str(error)) from error
            if ":" not in self._host:
                pinned = ",".join(f"[{each}]" if each.version == 6 else str(each) for each in found)
                settings = ["-c", f"http.curloptResolve={self._host}:{self._port}:{pinned}"]
        if not (self._copy / "HEAD").exists():
            self._run(["git", "init", "--quiet", "--bare", "--template=", str(self._copy)])
        with (self._copy / "kb.lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            left = [*self._copy.glob("objects/pack/tmp_*"), self._copy / "shallow.lock"]
            for file in (*left, self._copy / f"{_TIP}.lock"):  # by a git that was killed
                file.unlink(missing_ok=True)
            options = [
                "--quiet",
                "--depth=1",
                "--no-tags",
                "--no-recurse-submodules",
                "--no-write-fetch-head",
            ]
            refspec = f"+{self._ref}:{_TIP}"
            self._git(*settings, "fetch", *options, "--", self._url, refspec, most=MOST_PACKED)
            return self._git("rev-parse", "--verify", _TIP).decode("ascii").strip()

    def _git(self, *arguments: str, to: IO[bytes] | None = None, most: int | None = None) -> bytes:
        switches = [each for name, value in _SETTINGS for each in ("-c", f"{name}={value}")]
        return self._run(["git", "--git-dir", str(self._copy), *switches, *arguments], to, most)

    def _run(self, command: list[str], to: IO[bytes] | None = None, most: int | None = None) -> bytes:
        """Return the output, unless it is written to a file; no file gets more than `most` bytes."""
        kept = {name: os.environ[name] for name in ("PATH", "SSH_AUTH_SOCK") if name in os.environ}
        most = most or MOST_LISTED
        with TemporaryFile() as out, TemporaryFile() as errors:
            try:
                subprocess.run(  # noqa: S603 - arguments are checked, and none begins with a dash
                    command,
                    env=kept | _ENVIRONMENT | self._secret,
                    stdin=subprocess.DEVNULL,
                    stdout=to or out,
                    stderr=errors,
                    timeout=_MOST_SECONDS,
                    check=True,
                    preexec_fn=partial(_bound_files, most),
                )
            except FileNotFoundError as error:
                raise CliError("the program git is not installed") from error
            except subprocess.CalledProcessError as error:
                errors.seek(0)
                lines = errors.read(_READ_OF_ERRORS).decode("utf-8", "replace").strip().splitlines()
                if error.returncode == -signal.SIGXFSZ or any(_CUT in line for line in lines):
                    message = f"it has more than {most >> 20:,} MiB, or its pack is damaged"
                    raise Unavailable(message) from error
                raise Unavailable(lines[0] if lines else f"git ends with {error.returncode}") from error
            except subprocess.TimeoutExpired as error:
                raise Unavailable(f"git takes more than {_MOST_SECONDS:g} seconds") from error
            out.seek(0)
            return out.read()


def _bound_files(most: int) -> None:
    """Bound the files that this process and its children write, in bytes."""
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    soft = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
