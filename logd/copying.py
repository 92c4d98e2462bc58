"""A connection whose large replies are read and written in pieces: for TLS, and for HTTP.

`sendfile` goes from a file to a bare socket. Where something has to be done to the bytes on their
way, they come through memory: one piece at a time, and the next when the last has been taken.
"""

from __future__ import annotations

import asyncio

from logd.disk import NotCached
from logd.partition import Slice
from logd.service import Reply
from logd.tcp import Connection, Connections

_PIECE_BYTES = 256 * 1024


class CopyingConnection(Connection):
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

    def _send_large(self) -> None:
        large, self._large = self._large, None
        assert large is not None
        self._copying = asyncio.ensure_future(self._copy(large))

    async def _copy(self, large: Reply) -> None:
        self._transport.write(large.head)
        try:
            for part in large.slices:
                end = part.position + part.size
                for at in range(part.position, end, _PIECE_BYTES):
                    piece = await _read(part, at, min(_PIECE_BYTES, end - at))
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
    def eof_received(self) -> bool:
        """TLS has no half-close: the connection ends, and answers under way with it."""
        super().eof_received()
        return False
