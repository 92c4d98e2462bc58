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
from logd.requests import Request

# Shared by all connections: the loop fills it and hands it on before it turns to another.
_scratch = memoryview(bytearray(8 * 1024))


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


class BulkReceiver(asyncio.BufferedProtocol):
    def __init__(self, connection: Receiver) -> None:
        self._connection = connection
        self._parser = connection.parser
        self._room: memoryview | None = None
        self._likely: bytearray | None = None

    def get_buffer(self, sizehint: int) -> memoryview | bytearray:
        self._room = self._parser.room()
        if self._room is not None:
            return self._room
        if self._parser.likely_bytes:
            self._likely = bytearray(self._parser.likely_bytes + MAX_LINE_BYTES)
            return self._likely
        return _scratch

    def buffer_updated(self, size: int) -> None:
        if self._room is not None:
            self._room = None
            self._connection.received(self._parser.filled(size), size)
        elif self._likely is not None:
            self._take_likely(size)
        else:
            self._connection.data_received(bytes(_scratch[:size]))

    def _take_likely(self, size: int) -> None:
        data, self._likely = self._likely, None
        assert data is not None
        view = memoryview(data)[:size]
        if 2 * size < len(data):  # it is not another one like that, and must not keep so much
            self._parser.likely_bytes = 0
            self._connection.data_received(bytes(view))
        else:
            self._connection.feed_large(view)

    def eof_received(self) -> bool:
        return self._connection.eof_received()

    def connection_lost(self, error: Exception | None) -> None:
        self._connection.connection_lost(error)

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()
