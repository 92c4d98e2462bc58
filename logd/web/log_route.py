"""`POST /log`: the line protocol in a request's body, its replies in the response.

The body is fed to a connection like any other, with this pair of streams in place of a socket. So
order, limits, time-outs and memory are those of the line protocol: when replies are not taken, no
more of the body is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from logd.access.access_file import Grant
from logd.net.authorized_connection import GatedConnection
from logd.net.buffered_reply import CopyingConnection
from logd.tcp import Connections

_HIGH_BYTES = 64 * 1024  # of replies that wait to be sent
_LONG_HIGH_BYTES = 16 * 1024  # the same once a response has begun: more may wait in the socket
_PIECE_BYTES = 32 * 1024  # of a large reply; up to four may be on their way
_SOON_S = 0.5

Receive = Any
Send = Any


class _Streams(asyncio.Transport):
    """As much of a transport as a connection uses."""

    def __init__(self, address: str, abort_connection: Callable[[], None]) -> None:
        super().__init__()
        self.address = address
        self._abort_connection = abort_connection
        self.out = bytearray()
        self.may_read = asyncio.Event()
        self.may_read.set()
        self.changed = asyncio.Event()
        self.is_closed = self.is_aborted = self.is_late = False
        self._high = _HIGH_BYTES
        self._is_paused = False
        self.connection: CopyingConnection | None = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.out += data
        self.changed.set()
        if len(self.out) > self._high and not self._is_paused and self.connection is not None:
            self._is_paused = True
            self.connection.pause_writing()

    def taken(self) -> bytes:
        """What is to be sent next."""
        out = bytes(self.out)
        self.out.clear()
        self.changed.clear()
        if self._is_paused and self.connection is not None:
            self._is_paused = False
            self.connection.resume_writing()
        return out

    def get_write_buffer_size(self) -> int:
        return len(self.out)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = _HIGH_BYTES if high is None else high
        if len(self.out) > self._high and not self._is_paused and self.connection is not None:
            self._is_paused = True
            self.connection.pause_writing()

    def pause_reading(self) -> None:
        self.may_read.clear()

    def resume_reading(self) -> None:
        self.may_read.set()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.close()

    def close(self) -> None:
        self.is_closed = True
        self.may_read.set()
        self.changed.set()

    def hurry(self) -> None:
        """What is here should be sent, even if there is more to come."""
        self.is_late = True
        self.changed.set()

    def abort(self) -> None:
        self.is_aborted = True
        self.close()

    def cut(self) -> None:
        """End the response where it is, even if its client takes nothing."""
        self.abort()
        self._abort_connection()

    def is_closing(self) -> bool:
        return self.is_closed


class Exchange(CopyingConnection):
    """A connection without a socket."""

    piece_bytes = _PIECE_BYTES

    def __init__(self, connections: Connections, streams: _Streams) -> None:
        super().__init__(connections)
        self._is_bulky = True  # it has no socket to receive from
        self._streams = streams
        streams.connection = self
        self._transport = streams
        self._write = streams.write
        connections.open.add(self)

    @property
    def client(self) -> str:
        return self._streams.address

    def abandon(self) -> None:
        """The client is gone."""
        self._streams.abort()

    def end(self) -> None:
        """A reply that is not whole must not look as if it were."""
        if self._copying is not None:
            self._closing = True
            self._streams.cut()
        else:
            super().end()


class GatedExchange(GatedConnection, Exchange):
    def __init__(self, connections: Connections, streams: _Streams, grant: Grant | None) -> None:
        Exchange.__init__(self, connections, streams)
        self.open_gate(grant)


async def post_log(connections: Connections, scope: Any, receive: Receive, send: Send) -> None:
    """Serve one request. What a short one gets is sent as a whole, with its length."""
    streams = _Streams(scope["client"][0] if scope["client"] else "", scope["abort"])
    if connections.is_gated:
        exchange: Exchange = GatedExchange(connections, streams, scope.get("grant"))
    else:
        exchange = Exchange(connections, streams)
    feeding: asyncio.Task[None] | None = None
    try:
        more = _feed(exchange, await receive())
        if more or not await _answer_short(streams, send):
            feeding = asyncio.ensure_future(_feed_rest(exchange, streams, receive, more))
            await _answer_long(streams, send, scope["is_gone"])
    finally:
        if feeding is not None:
            feeding.cancel()
        exchange.connection_lost(None)
    if streams.is_aborted:  # by a client that is gone or too slow, or by a disk that fails
        scope["abort"]()
        while (await receive())["type"] != "http.disconnect":
            pass


def _feed(exchange: Exchange, message: Any) -> bool:
    """Hand over a piece of the body; is there more?"""
    if message["type"] == "http.disconnect":
        exchange.abandon()
        return False
    if body := message.get("body"):
        exchange.data_received(body)
    if message.get("more_body"):
        return True
    exchange.eof_received()
    return False


async def _feed_rest(exchange: Exchange, streams: _Streams, receive: Receive, more: bool) -> None:
    """The rest of the body, and then the end of the client."""
    while more and not streams.is_closed:
        await streams.may_read.wait()
        more = _feed(exchange, await receive())
    while (await receive())["type"] != "http.disconnect":
        pass
    streams.abort()


async def _answer_short(streams: _Streams, send: Send) -> bool:
    """The whole body is here: if its answer comes soon it is sent in one piece, with its length."""
    timer = asyncio.get_running_loop().call_later(_SOON_S, streams.hurry)
    while not streams.is_closed and not streams.is_late and len(streams.out) <= _HIGH_BYTES:
        streams.changed.clear()
        await streams.changed.wait()
    timer.cancel()
    if not streams.is_closed:
        streams.changed.set()
        return False
    if not streams.is_aborted:
        out = streams.taken()
        await send(_start((b"content-length", b"%d" % len(out))))
        await send({"type": "http.response.body", "body": out})
    return True


async def _answer_long(streams: _Streams, send: Send, is_gone: Callable[[], bool]) -> None:
    """Send replies as they come. A client that is gone shows here, while its body is not read."""
    streams.set_write_buffer_limits(high=_LONG_HIGH_BYTES)
    await send(_start())
    while not streams.is_closed or streams.out:
        await streams.changed.wait()
        if is_gone():
            streams.abort()
        if streams.is_aborted:
            return
        if out := streams.taken():
            await send({"type": "http.response.body", "body": out, "more_body": True})
            await asyncio.sleep(0)  # nothing above waits while the client reads quickly
    await send({"type": "http.response.body", "body": b""})


def _start(*headers: tuple[bytes, bytes]) -> dict[str, Any]:
    kind = (b"content-type", b"application/octet-stream")
    return {"type": "http.response.start", "status": 200, "headers": [kind, *headers]}
