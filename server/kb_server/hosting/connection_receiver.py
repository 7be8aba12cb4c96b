"""Connections that another process accepted: the parent of the workers hands them out in turns.

Kernels share connections among processes that listen on one port by chance or by who is first, and a
keep-alive connection stays where it fell. Handed out in turns, each worker has as many as the others.
"""

from __future__ import annotations

import socket

from kb_contracts.http.connections import ConnectionTable, Intake


class ConnectionReceiver:
    """Serves the connections that come as descriptors over `channel`, a Unix stream socket.

    `table` makes their protocols. Those that still wait in the channel are closed with it.
    """

    def __init__(self, table: ConnectionTable, channel: socket.socket) -> None:
        self._channel = channel
        channel.setblocking(False)
        self._intake = Intake(table, channel, self._take)

    def start(self) -> None:
        """Take connections from now on."""
        self._intake.start()

    def stop(self) -> None:
        """Take no more."""
        self._intake.stop()

    def _take(self) -> socket.socket | None:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._channel, 1, 1)
        except BlockingIOError:
            return None
        if not data or not descriptors:  # the parent has gone, or there was no descriptor left
            raise OSError
        return socket.socket(fileno=descriptors[0])
