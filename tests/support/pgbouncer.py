"""PgBouncer in transaction mode before the server of a test, with fewer connections than an engine uses."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kb_load.postgres import USER
from kb_load.processes import LOOPBACK, Leash, free_port
from tests.support.patience import START_SECONDS
from tests.support.postgres import PASSWORD, Database

_CONNECTIONS = 4
_NOBODY = 65534


@contextmanager
def pgbouncer(database: Database, folder: Path) -> Iterator[str]:
    """Yield the URL of a database through PgBouncer; the test is skipped where that is not installed."""
    program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if program is None:
        pytest.skip("pgbouncer is not installed")
    port, configuration = free_port(), folder / "pgbouncer.ini"
    server = f"host={LOOPBACK} port={database.server.port} user={USER}"
    configuration.write_text(
        f"[databases]\n{database.name} = {server}\n"
        f"[pgbouncer]\nlisten_addr = {LOOPBACK}\nlisten_port = {port}\nunix_socket_dir =\n"
        "auth_type = any\npool_mode = transaction\nmax_client_conn = 500\n"
        f"default_pool_size = {_CONNECTIONS}\n"
    )
    user = {"user": _NOBODY, "group": _NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
    command = [program, "-q", "/dev/stdin"]
    with configuration.open() as given, (folder / "pgbouncer.log").open("wb") as log:
        process = subprocess.Popen(command, stdin=given, stdout=log, stderr=log, cwd="/", **user)  # type: ignore[call-overload]
    leash = Leash(process.pid, "TERM")
    try:
        yield f"postgresql://{USER}:{PASSWORD}@{LOOPBACK}:{port}/{database.name}"
    finally:
        process.terminate()
        process.wait(START_SECONDS)
        leash.release()
