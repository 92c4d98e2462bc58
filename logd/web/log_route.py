"""`POST /log`: the line protocol in the body of a request, and its replies in the response.

The body is fed to a `Connection` whose transport is the HTTP exchange. So order, limits, timeouts
and memory are those of the line protocol: while the client reads no replies, its body is not read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from starlette.types import Message, Receive, Scope, Send

from logd.net.connection import Connection
from logd.net.large_replies import BufferedSender
from logd.tcp import Connections

_HIGH_BYTES = 64 * 1024  # of replies that wait to be sent
_LONG_HIGH_BYTES = 16 * 1024  # the same after the response has started: more is in the socket
_PIECE_BYTES = 32 * 1024  # of a large reply; up to four are buffered
_SHORT_S = 0.5  # a response that takes longer is sent in chunks


class LogExchange(asyncio.Transport):
    """The part of a transport that a connection uses, on top of an HTTP request."""

    def __init__(self, connection: Connection, abort_http: Callable[[], None]) -> None:
        super().__init__()
        self._connection, self._abort_http = connection, abort_http
        self.out = bytearray()
        self.may_read = asyncio.Event()
        self.may_read.set()
        self.changed = asyncio.Event()
        self.is_closed = self.is_aborted = self.is_late = False
        self._high_bytes = _HIGH_BYTES
        self._is_paused = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.out += data
        self.changed.set()
        self._pause_if_full()

    def _pause_if_full(self) -> None:
        if len(self.out) > self._high_bytes and not self._is_paused:
            self._is_paused = True
            self._connection.pause_writing()

    def take(self) -> bytes:
        """The bytes to send next."""
        out = bytes(self.out)
        self.out.clear()
        self.changed.clear()
        if self._is_paused:
            self._is_paused = False
            self._connection.resume_writing()
        return out

    def get_write_buffer_size(self) -> int:
        return len(self.out)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high_bytes = _HIGH_BYTES if high is None else high
        self._pause_if_full()

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

    def send_early(self) -> None:
        """Start the response, even if it is incomplete."""
        self.is_late = True
        self.changed.set()

    def abort(self) -> None:
        """Break off the response, even if the client reads nothing."""
        self.is_aborted = True
        self.close()
        self._abort_http()


async def post_log(connections: Connections, scope: Scope, receive: Receive, send: Send) -> None:
    """Serve one request. A short response is sent with its length."""
    connection = Connection(connections)
    exchange = LogExchange(connection, scope["abort"])
    address = scope["client"][0] if scope["client"] else ""
    make_sender = partial(BufferedSender, piece_bytes=_PIECE_BYTES)
    connection.open(exchange, address, connections.authorizer(scope.get("grant")), make_sender)
    feeding: asyncio.Task[None] | None = None
    try:
        more = _feed(connection, exchange, await receive())
        if more or not await _answer_short(exchange, send):
            feeding = asyncio.ensure_future(_feed_rest(connection, exchange, receive, more))
            await _answer_long(exchange, send, scope["is_gone"])
    finally:
        if feeding is not None:
            feeding.cancel()
        connection.connection_lost(None)
    if exchange.is_aborted:  # the client has disconnected or is too slow, or the disk fails
        while (await receive())["type"] != "http.disconnect":
            pass


def _feed(connection: Connection, exchange: LogExchange, message: Message) -> bool:
    """Pass on a piece of the body. Is there more?"""
    if message["type"] == "http.disconnect":
        exchange.abort()
        return False
    if body := message.get("body"):
        connection.data_received(body)
    if message.get("more_body"):
        return True
    connection.eof_received()
    return False


async def _feed_rest(
    connection: Connection, exchange: LogExchange, receive: Receive, more: bool
) -> None:
    """Pass on the rest of the body, then wait for the client to disconnect."""
    while more and not exchange.is_closed:
        await exchange.may_read.wait()
        more = _feed(connection, exchange, await receive())
    while (await receive())["type"] != "http.disconnect":
        pass
    exchange.abort()


async def _answer_short(exchange: LogExchange, send: Send) -> bool:
    """Send the response in one piece, if it is short and complete soon after the body."""
    timer = asyncio.get_running_loop().call_later(_SHORT_S, exchange.send_early)
    while not exchange.is_closed and not exchange.is_late and len(exchange.out) <= _HIGH_BYTES:
        exchange.changed.clear()
        await exchange.changed.wait()
    timer.cancel()
    if not exchange.is_closed:
        exchange.changed.set()
        return False
    if not exchange.is_aborted:
        out = exchange.take()
        await send(_start((b"content-length", b"%d" % len(out))))
        await send({"type": "http.response.body", "body": out})
    return True


async def _answer_long(exchange: LogExchange, send: Send, is_gone: Callable[[], bool]) -> None:
    """Send replies as they come. Notices a client that has disconnected while its body waits."""
    exchange.set_write_buffer_limits(high=_LONG_HIGH_BYTES)
    await send(_start())
    while not exchange.is_closed or exchange.out:
        await exchange.changed.wait()
        if is_gone():
            exchange.abort()
        if exchange.is_aborted:
            return
        if out := exchange.take():
            await send({"type": "http.response.body", "body": out, "more_body": True})
            await asyncio.sleep(0)  # otherwise a client that reads quickly would keep the loop
    await send({"type": "http.response.body", "body": b""})


def _start(*headers: tuple[bytes, bytes]) -> Message:
    kind = (b"content-type", b"application/octet-stream")
    return {"type": "http.response.start", "status": 200, "headers": [kind, *headers]}
