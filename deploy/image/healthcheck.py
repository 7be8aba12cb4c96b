"""Asks the program in this container how it is: status 0 where it answers 200.

    python healthcheck.py VARIABLE[,VARIABLE] PATH [CERTIFICATE]

The first VARIABLE that is set holds the port; where the variable CERTIFICATE is set, the program speaks
TLS. Only what Python itself brings is imported, and little of that: the check runs every few seconds for as
long as the container lives.
"""

from __future__ import annotations

import os
import socket
import sys

SECONDS = 4.0


def status_of(port: int, path: str, *, encrypted: bool = False) -> int:
    """The status that the program on loopback answers a GET with.

    Raises:
        OSError: nobody listens there, or nothing is said in time.
        ValueError: what was said is not HTTP.
    """
    with _connect(port, encrypted) as connection:
        connection.sendall(f"GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
        with connection.makefile("rb") as answer:
            version, status, *_ = answer.readline(1000).split()
    if not version.startswith(b"HTTP/"):
        raise ValueError("not HTTP")
    return int(status)


def _connect(port: int, encrypted: bool) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=SECONDS)
    if not encrypted:
        return connection
    import ssl  # which few have set up, and which takes longer than all else

    # Its name is that by which others come; it is asked on loopback, and trusted to be who it is.
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(connection)


def port_in(variables: str) -> int:
    """The port that the settings name.

    Raises:
        ValueError: none is set, or it is no number.
    """
    for variable in variables.split(","):
        if os.environ.get(variable):
            return int(os.environ[variable])
    raise ValueError(f"{variables} is not set")


def main(variables: str, path: str, certificate: str = "") -> int:
    """0 where the program is well, else 1 with the reason."""
    try:
        status = status_of(port_in(variables), path, encrypted=bool(os.environ.get(certificate)))
    except (OSError, ValueError) as error:
        sys.stdout.write(f"{path}: {error}\n")
        return 1
    sys.stdout.write(f"{path}: {status}\n")
    return 0 if status == 200 else 1


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
