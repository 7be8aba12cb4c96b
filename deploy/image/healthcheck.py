"""Health check of the program in this container: exit status 0 if it answers 200.

    python healthcheck.py VARIABLE[,VARIABLE] PATH [CERTIFICATE]

The port is the value of the first VARIABLE that is set; if the variable CERTIFICATE is set, the program uses
TLS. Only few modules of the standard library are imported, because the check runs every few seconds.
"""

from __future__ import annotations

import os
import socket
import sys

SECONDS = 4.0


def status_of(port: int, path: str, *, encrypted: bool = False) -> int:
    """Return the status of a GET to the program on loopback.

    Raises:
        OSError: the port is closed, or there is no answer in time.
        ValueError: the answer is not HTTP.
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
    import ssl  # imported here, because it takes longer than the rest and few installations use TLS

    # The certificate has a public name, but the request goes to loopback, where the program is trusted.
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(connection)


def port_in(variables: str) -> int:
    """Return the port in the settings.

    Raises:
        ValueError: no variable is set, or its value is not a number.
    """
    for variable in variables.split(","):
        if os.environ.get(variable):
            return int(os.environ[variable])
    raise ValueError(f"{variables} is not set")


def main(variables: str, path: str, certificate: str = "") -> int:
    """Return 0 if the program is healthy, or 1 after printing the reason."""
    try:
        status = status_of(port_in(variables), path, encrypted=bool(os.environ.get(certificate)))
    except (OSError, ValueError) as error:
        sys.stdout.write(f"{path}: {error}\n")
        return 1
    sys.stdout.write(f"{path}: {status}\n")
    return 0 if status == 200 else 1


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
