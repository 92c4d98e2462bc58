"""Large bodies: received from the socket straight into the batch's own buffer.

A connection starts with the loop's ordinary receiving, which is quickest for small requests. Once
it sends a large body, this takes over its receiving for good: small requests come through one
buffer that all connections share, bodies go where they are to stay. Whoever sent a large push is
likely to send another, so that a command line and its body often come in with one call.
"""

from __future__ import annotations

import asyncio
from typing import Protocol as Interface

from logd.protocol import MAX_LINE_BYTES, Parser
from logd.wire.requests import Request

# Both shared by all connections: the loop fills one and hands it on before it turns to another.
_scratch = memoryview(bytearray(8 * 1024))
_spare = bytearray()  # room for one large push; if nothing comes it is the next one's


class Receiver(Interface):
    """The connection behind it."""

    parser: Parser

    def data_received(self, data: bytes) -> None: ...
    def feed_large(self, data: memoryview) -> None: ...
    def received(self, requests: list[Request], size: int) -> None: ...
    def eof_received(self) -> bool: ...
    def connection_lost(self, error: Exception | None) -> None: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...


class LargeBodyReceiver(asyncio.BufferedProtocol):
    def __init__(self, connection: Receiver) -> None:
        self._connection = connection
        self._parser = connection.parser
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
            self._connection.received(self._parser.filled(size), size)
        elif self._is_likely:
            self._take_likely(size)
        else:
            self._connection.data_received(bytes(_scratch[:size]))

    def _take_likely(self, size: int) -> None:
        if 2 * size < len(_spare):  # it is not another one like that, and must not keep so much
            self._parser.likely_bytes = 0
            self._connection.data_received(bytes(memoryview(_spare)[:size]))
        else:
            self._connection.feed_large(memoryview(_taken())[:size])

    def eof_received(self) -> bool:
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
    """It stays with whoever has it now."""
    global _spare
    taken, _spare = _spare, bytearray()
    return taken
