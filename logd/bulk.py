"""Large bodies: received from the socket straight into the batch's own buffer.

A connection starts with the loop's ordinary receiving, which is quickest for small requests. Once
it sends a body that does not fit into one piece, this takes over its receiving for good: requests
come through one small buffer that all connections share, bodies go where they are to stay.
"""

from __future__ import annotations

import asyncio
from typing import Protocol as Interface

from logd.protocol import Parser
from logd.requests import Request

# Shared by all connections: the loop fills it and hands it on before it turns to another.
_scratch = memoryview(bytearray(8 * 1024))


class Receiver(Interface):
    """The connection behind it."""

    parser: Parser

    def data_received(self, data: bytes) -> None: ...
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

    def get_buffer(self, sizehint: int) -> memoryview:
        self._room = self._parser.room()
        return _scratch if self._room is None else self._room

    def buffer_updated(self, size: int) -> None:
        if self._room is None:
            self._connection.data_received(bytes(_scratch[:size]))
        else:
            self._room = None
            self._connection.received(self._parser.filled(size), size)

    def eof_received(self) -> bool:
        return self._connection.eof_received()

    def connection_lost(self, error: Exception | None) -> None:
        self._connection.connection_lost(error)

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()
