"""Large bodies: received from the socket directly into the buffer that is written to the file.

A connection starts with the loop's ordinary receiving, which is fastest for small requests. After
its first large body it receives through this protocol: small requests through one buffer that all
connections share, bodies into their own. A client that sent a large push is likely to send another
one, so room for a command line and a body of that size is offered to the socket.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from logd.net.request_turns import RequestTurns
from logd.protocol import MAX_LINE_BYTES

# Shared by all connections: the loop fills one and passes it on before it serves another socket.
_scratch = memoryview(bytearray(8 * 1024))
_spare = bytearray()  # room for one large push; if none arrives, the next connection uses it


class LargeBodyReceiver(asyncio.BufferedProtocol):
    def __init__(
        self, connection: asyncio.Protocol, input_: RequestTurns, feed: Callable[[memoryview], None]
    ) -> None:
        self._connection, self._input, self._feed = connection, input_, feed
        self._parser = input_.parser
        self._room: memoryview | None = None
        self._is_likely = False

    def get_buffer(self, sizehint: int) -> memoryview | bytearray:
        self._room = self._parser.room()
        self._is_likely = self._room is None and self._parser.likely_bytes > 0
        if self._is_likely:
            return _room_for(self._parser.likely_bytes + MAX_LINE_BYTES)
        return _scratch if self._room is None else self._room

    def buffer_updated(self, size: int) -> None:
        if self._room is not None:
            self._room = None
            self._input.take(self._parser.filled(size), size)
        elif self._is_likely:
            self._take_likely(size)
        else:
            self._connection.data_received(bytes(_scratch[:size]))

    def _take_likely(self, size: int) -> None:
        if 2 * size < len(_spare):  # not another large push: it must not keep a large buffer
            self._parser.likely_bytes = 0
            self._connection.data_received(bytes(memoryview(_spare)[:size]))
        else:
            self._feed(memoryview(_taken())[:size])

    def eof_received(self) -> bool | None:
        return self._connection.eof_received()

    def connection_lost(self, error: Exception | None) -> None:
        self._connection.connection_lost(error)

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()


def _room_for(size: int) -> bytearray:
    global _spare
    if len(_spare) != size:
        _spare = bytearray(size)
    return _spare


def _taken() -> bytearray:
    """The buffer, which belongs to the caller from now on."""
    global _spare
    taken, _spare = _spare, bytearray()
    return taken
