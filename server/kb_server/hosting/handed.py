"""Connections that another process accepted: the parent of the workers hands them out in turns.

Kernels share connections among processes that listen on one port by chance or by who is first, and a
keep-alive connection stays where it fell. Handed out in turns, each worker has as many as the others.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

from kb_contracts.admission import Admission

_AT_ONCE = 32


class HandedConnections:
    """Serves the connections that come as descriptors over `channel`, a Unix stream socket.

    `admission` makes their protocols. A turn of the loop takes only some, so that they are counted before
    more descriptors are taken up.
    """

    def __init__(self, admission: Admission, channel: socket.socket) -> None:
        self._admission = admission
        self._channel = channel
        self._beginning: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Take connections from now on."""
        self._channel.setblocking(False)
        asyncio.get_running_loop().add_reader(self._channel.fileno(), self._take)

    def stop(self) -> None:
        """Take no more; those that are waiting in the channel are the parent's again when it is closed."""
        asyncio.get_running_loop().remove_reader(self._channel.fileno())
        self._channel.close()

    def _take(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                data, descriptors, _, _ = socket.recv_fds(self._channel, 1, 1)
            except BlockingIOError:
                return
            except OSError:
                data, descriptors = b"", []
            if not data:  # the parent has gone: nobody will hand out anything any more
                asyncio.get_running_loop().remove_reader(self._channel.fileno())
                return
            for descriptor in descriptors:
                task = asyncio.get_running_loop().create_task(self._begin(socket.socket(fileno=descriptor)))
                self._beginning.add(task)
                task.add_done_callback(self._beginning.discard)

    async def _begin(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        with suppress(OSError):  # the client has left before it was served
            await asyncio.get_running_loop().connect_accepted_socket(self._admission, connection)
