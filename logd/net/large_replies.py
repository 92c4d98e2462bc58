"""Large replies: batches that are sent from their files, without holding them in memory.

A connection has one sender for them, made at its first large reply. `SendfileSender` is for plain
TCP, where the kernel copies from the file to the socket. `BufferedSender` reads and writes pieces:
for TLS, which has to encrypt them, and for HTTP. Both send a bounded amount per turn of the event
loop, and read on a thread what is not in the page cache. Both send one reply at a time, then call
`done`; if that fails they abort the connection. The connection resets `has_sent`.
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

HIGH_BYTES = 16 << 10  # that a client has not read when the connection stops executing commands
_TURN_BYTES = 1 << 20
_PIECE_BYTES = 64 << 10  # measured over TLS: 16 KB and 256 KB are slower
_FEW = 64  # buffered replies that may each use a lot of memory for the sake of speed
_WIDE_BYTES, _NARROW_BYTES = 512 << 10, 64 << 10  # that TLS may hold, with few and with more
_TRUNCATED = "the file is shorter than it was"


class SendfileSender:
    """Works on a duplicate of the transport's descriptor, while the transport's buffer is empty."""

    def __init__(
        self, transport: asyncio.Transport, done: Callable[[], None], scheduler: Scheduler
    ) -> None:
        descriptor = transport.get_extra_info("socket").fileno()
        self._socket = socket.socket(fileno=os.dup(descriptor))
        self._transport, self._done, self._scheduler = transport, done, scheduler
        self._loop = asyncio.get_running_loop()
        self._head, self._slices = b"", list[Slice]()
        self._is_closed = self._is_watching = self.has_sent = self._is_waiting = False
        self.is_sending = False

    def send(self, head: bytes, slices: tuple[Slice, ...]) -> None:
        self._head, self._slices, self.is_sending = head, [*reversed(slices)], True
        if self._transport.get_write_buffer_size():
            self._is_waiting = True
            self._transport.set_write_buffer_limits(high=0)  # `resume` is called when it is empty
        else:
            self._turn()

    def pause(self) -> None:
        pass

    def resume(self) -> None:
        if self._is_waiting:
            self._is_waiting = False
            self._transport.set_write_buffer_limits(high=HIGH_BYTES)
            self._turn()

    def close(self) -> None:
        self._is_closed = True
        self._watch(False)
        self._slices = []
        self._socket.close()

    def _turn(self) -> None:
        """Send what the socket accepts now, up to a limit, and return to the event loop."""
        if self._is_closed:
            return
        try:
            if self._head:
                self._head = self._head[self._socket.send(self._head, socket.MSG_MORE) :]
            if not self._head:
                self._send_piece()
        except BlockingIOError:
            self._watch(True)
        except NotCached as cold:
            self._watch(False)
            self._scheduler.offload(cold.warm, self._warmed)
        except OSError:
            self._transport.abort()
        else:
            self._watch(bool(self._slices))
            if not self._slices:
                self.is_sending = False
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
                raise OSError(_TRUNCATED)
        finally:
            self.has_sent |= sent > 0
            if sent < size:
                self._slices.append(Slice(file, position + sent, size - sent))

    def _warmed(self, _: Any, error: BaseException | None) -> None:
        if error is not None and not self._is_closed:
            self._transport.abort()
        else:
            self._turn()

    def _watch(self, wanted: bool) -> None:
        if wanted and not self._is_watching:
            self._loop.add_writer(self._socket, self._turn)
        elif self._is_watching and not wanted:
            self._loop.remove_writer(self._socket)
        self._is_watching = wanted


class BufferedSender:
    """Writes a piece to the transport when the one before it has been accepted."""

    _under_way = 0  # replies of all connections

    def __init__(
        self,
        transport: asyncio.Transport,
        done: Callable[[], None],
        piece_bytes: int = _PIECE_BYTES,
        *,
        is_tls: bool = False,
    ) -> None:
        self._transport, self._done, self._piece_bytes = transport, done, piece_bytes
        self._is_tls, self.has_sent = is_tls, False
        self._writable = asyncio.Event()
        self._writable.set()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_sending(self) -> bool:
        return self._task is not None

    def send(self, head: bytes, slices: tuple[Slice, ...]) -> None:
        if self._is_tls:
            high = _WIDE_BYTES if BufferedSender._under_way < _FEW else _NARROW_BYTES
            self._transport.set_write_buffer_limits(high=high)
        BufferedSender._under_way += 1
        self._task = asyncio.ensure_future(self._copy(head, slices))
        self._task.add_done_callback(self._ended)

    def pause(self) -> None:
        self._writable.clear()

    def resume(self) -> None:
        self._writable.set()

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _ended(self, _: object) -> None:
        BufferedSender._under_way -= 1

    async def _copy(self, head: bytes, slices: tuple[Slice, ...]) -> None:
        self._transport.write(head)
        try:
            for part in slices:
                end = part.position + part.size
                for at in range(part.position, end, self._piece_bytes):
                    piece = await _read(part, at, min(self._piece_bytes, end - at))
                    await self._writable.wait()
                    self._transport.write(piece)
                    self.has_sent = True
        except OSError:
            self._transport.abort()
            return
        self._task = None
        if self._is_tls:
            self._transport.set_write_buffer_limits(high=HIGH_BYTES)
        self._done()


async def _read(part: Slice, at: int, size: int) -> bytes | bytearray:
    """OSError if the file is too short: the length of the reply has been sent already."""
    piece: bytes | bytearray
    try:
        piece = part.file.read(at, size)
    except NotCached as cold:
        loop = asyncio.get_running_loop()
        piece = await loop.run_in_executor(None, cold.file.read_waiting, at, size)
    if len(piece) < size:
        raise OSError(_TRUNCATED)
    return piece
