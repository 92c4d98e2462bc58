"""Large replies: from file to socket inside the kernel, a bounded piece per turn of the loop.

The event loop's transport knows nothing of `sendfile`, so this works on a duplicate of its
descriptor, and only while the transport has nothing of its own to send. A peer that does not read
costs nothing but its place: no byte of the reply is held in memory. What the page cache does not
have is fetched on another thread first, so that a cold file does not stop the loop.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from typing import Any

from logd.partition import Slice
from logd.storage.disk import NotCached
from logd.storage.scheduler import Scheduler

try:
    from logd._native import send as send
except ImportError:  # no compiler where this was installed

    def send(socket: int, data: bytes, /) -> int:
        """How much of a short reply the socket took at once: here, nothing."""
        return 0


_TURN_BYTES = 1 << 20


class FileSender:
    """Sends slices of files over one connection, one reply at a time."""

    def __init__(
        self, connection_fd: int, scheduler: Scheduler, failed: Callable[[], None]
    ) -> None:
        self._socket = socket.socket(fileno=os.dup(connection_fd))
        self._loop = asyncio.get_running_loop()
        self._scheduler = scheduler
        self._failed = failed
        self._closed = False
        self._is_watching = False
        self._has_sent = False

    def send(self, head: bytes, slices: tuple[Slice, ...], done: Callable[[], None]) -> None:
        self._head, self._slices, self._done = head, list(slices), done
        self._slices.reverse()
        self._turn()

    def progressed(self) -> bool:
        """Has anything been sent since this was last asked?"""
        has_sent, self._has_sent = self._has_sent, False
        return has_sent

    def close(self) -> None:
        self._closed = True
        self._watch(False)
        self._slices = []
        self._socket.close()

    def _turn(self) -> None:
        """Send what the socket takes now, up to a bound; then let the others have the loop."""
        if self._closed:
            return
        try:
            if self._head:
                more = socket.MSG_MORE
                self._head = self._head[self._socket.send(self._head, more) :]
            if not self._head:
                self._send_piece()
        except BlockingIOError:
            self._watch(True)
        except NotCached as cold:
            self._watch(False)
            self._scheduler.offload(cold.warm, self._warmed)
        except OSError:
            self._failed()
        else:
            self._watch(bool(self._slices))
            if not self._slices:
                self._done()

    def _send_piece(self) -> None:
        file, position, size = self._slices.pop()
        piece = min(size, _TURN_BYTES)
        sent = 0
        try:
            for probe in (position, position + piece - 1):
                file.read(probe, 1)
            sent = os.sendfile(self._socket.fileno(), file.fd, position, piece)
            if not sent:
                raise OSError("the file is shorter than it was")
        finally:
            self._has_sent |= sent > 0
            if sent < size:
                self._slices.append(Slice(file, position + sent, size - sent))

    def _warmed(self, _: Any, error: BaseException | None) -> None:
        if error is not None and not self._closed:
            self._failed()
        else:
            self._turn()

    def _watch(self, wanted: bool) -> None:
        if wanted and not self._is_watching:
            self._loop.add_writer(self._socket, self._turn)
        elif self._is_watching and not wanted:
            self._loop.remove_writer(self._socket)
        self._is_watching = wanted
