"""A connection whose large replies are read and written in pieces: for TLS, and for HTTP.

`sendfile` goes from a file to a bare socket. Where something has to be done to the bytes on their
way, they come through memory: one piece at a time, and the next when the last has been taken.
"""

from __future__ import annotations

import asyncio

from logd.net.reply_encoding import encode_head
from logd.partition import Slice
from logd.service import BatchesReply, Reply
from logd.storage.disk import NotCached
from logd.tcp import HIGH_BYTES, Connection, Connections

_PIECE_BYTES = 64 * 1024  # measured over TLS: 16 KB or 256 KB are slower
_FEW = 64  # large replies under way, to which a lot of memory may go for the sake of speed
_WIDE_BYTES, _NARROW_BYTES = 512 * 1024, 64 * 1024  # of what TLS may hold, with few and with many


class CopyingConnection(Connection):
    piece_bytes = _PIECE_BYTES

    def __init__(self, connections: Connections) -> None:
        super().__init__(connections)
        self._writable = asyncio.Event()
        self._writable.set()
        self._copying: asyncio.Task[None] | None = None

    def pause_writing(self) -> None:
        self._writable.clear()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._writable.set()
        super().resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        if self._copying is not None:
            self._copying.cancel()

    def reply(self, reply: Reply) -> None:
        if isinstance(reply, BatchesReply) and reply.slices and not self._closing:
            self._copying = asyncio.ensure_future(self._copy(reply))
            self._connections.copying += 1
            self._copying.add_done_callback(self._copied)
        else:
            super().reply(reply)

    def _copied(self, _: object) -> None:
        self._connections.copying -= 1

    async def _copy(self, large: BatchesReply) -> None:
        self._transport.write(encode_head(large))
        try:
            for part in large.slices:
                end = part.position + part.size
                for at in range(part.position, end, self.piece_bytes):
                    piece = await _read(part, at, min(self.piece_bytes, end - at))
                    await self._writable.wait()
                    self._transport.write(piece)
                    self._is_active = True
        except OSError:
            self._transport.abort()
            return
        self._copying = None
        self._sent_large()


async def _read(part: Slice, at: int, size: int) -> bytes | bytearray:
    """OSError where the file is shorter than it was: the reply's length is out already."""
    piece: bytes | bytearray
    try:
        piece = part.file.read(at, size)
    except NotCached as cold:
        loop = asyncio.get_running_loop()
        piece = await loop.run_in_executor(None, cold.file.read_waiting, at, size)
    if len(piece) < size:
        raise OSError("the file is shorter than it was")
    return piece


class TlsConnection(CopyingConnection):
    def reply(self, reply: Reply) -> None:
        if isinstance(reply, BatchesReply) and reply.slices and not self._closing:
            high = _WIDE_BYTES if self._connections.copying < _FEW else _NARROW_BYTES
            self._transport.set_write_buffer_limits(high=high)
        super().reply(reply)

    def _sent_large(self) -> None:
        self._transport.set_write_buffer_limits(high=HIGH_BYTES)
        super()._sent_large()

    def eof_received(self) -> bool:
        """TLS has no half-close: the connection ends, and answers under way with it."""
        super().eof_received()
        return False
