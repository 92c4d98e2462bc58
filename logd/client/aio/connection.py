"""One connection of an asyncio client: commands out, and a future for the reply to each.

Invariants: replies are given in the order of the commands. A cancelled future keeps its place, so
that its reply is read and discarded. When the connection ends, every command that is due fails with
`ConnectionLost`, and so does every later one.

Commands need no flow control: each caller waits for its reply, so the data in flight is bounded by
what the callers hold. Of a stream, one reply at a time is received: while it was not taken, the
rest stays in the socket, and no time limit applies.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from typing import Any, TypeVar, cast

from logd.client import credentials
from logd.errors import LogdError, Unauthorized
from logd.wire import commands
from logd.wire.addresses import (
    ConnectionLost,
    Target,
    lost,
    nobody_at,
    not_logd,
    parse_address,
    reason,
)
from logd.wire.commands import Command
from logd.wire.replies import NotLogd, ReceivedReply, Replies

_GRACE_S = 0.01  # after a blocked loop, read what has arrived before timing out
_SILENCE = TimeoutError()

T = TypeVar("T")


async def connect(address: str, target: Target, timeout_s: float | None) -> AsyncConnection:
    """ConnectionLost if no server answers in time. A token has been sent when this returns."""
    loop, (host, port) = asyncio.get_running_loop(), parse_address(address)
    try:
        secure, line = credentials.context(address, target), credentials.auth_line(target)
        async with asyncio.timeout(timeout_s):
            _, connection = await loop.create_connection(
                lambda: AsyncConnection(address, timeout_s), host, port, ssl=secure
            )
    except (OSError, UnicodeError) as error:
        raise nobody_at(address, error) from error
    if line:
        connection.authenticate(line)
    return connection


class AsyncConnection(asyncio.BufferedProtocol):
    def __init__(self, address: str, timeout_s: float | None) -> None:
        self.address = address
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._replies = Replies()
        self._due: deque[tuple[Command[Any], asyncio.Future[Any]]] = deque()
        self._unasked: LogdError | None = None  # sent before any command
        self._end: str | None = None  # why there will be no more replies
        self.closed = self._loop.create_future()  # done when the connection has ended
        self._timer: asyncio.TimerHandle | None = None
        self._fires_at_s = self._heard_at_s = 0.0
        self._unsent_bytes = 0
        self._is_late = self._is_paused = False

    @property
    def is_open(self) -> bool:
        return self._end is None

    @property
    def in_flight(self) -> int:
        return len(self._due)

    def send(self, command: Command[T]) -> asyncio.Future[T]:
        """Send it at once; the future gets its result, or the error."""
        future: asyncio.Future[T] = self._loop.create_future()
        if self._unasked is not None:
            future.set_exception(self._unasked)
            self._unasked = None
            return future
        if self._end is not None or self._transport is None:
            raise ConnectionLost(f"the connection to {self.address} is closed; make a new Client")
        if not self._due:
            self._heard_at_s = self._loop.time()
        self._due.append((command, future))
        pieces = (command.line, command.body) if command.body else (command.line,)
        self._transport.writelines(pieces)
        self._watch()
        return future

    def receive(self) -> asyncio.Future[Any]:
        """The next reply of the stream that is due; the one before was received."""
        future: asyncio.Future[Any] = self._loop.create_future()
        if self._end is not None:
            future.set_exception(lost(self.address, self._end))
            return future
        self._due[0] = (self._due[0][0], future)
        self._heard_at_s = self._loop.time()
        self._take_received()
        return future

    def authenticate(self, line: bytes) -> None:
        """Send a token; if it is refused, all commands after it fail with that error."""
        future = self.send(commands.introduction(line))
        future.add_done_callback(lambda done: done.cancelled() or done.exception())

    def abort(
        self, why: str = "this client closed it", failure: ConnectionLost | None = None
    ) -> None:
        """End it now. Commands that are due fail with ConnectionLost."""
        self._end = self._end or why
        due, self._due = self._due, deque()
        for _, future in due:
            if not future.done():
                future.set_exception(failure or lost(self.address, why))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._transport is not None:
            self._transport.abort()

    # -- called by the event loop -----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._replies.room()

    def buffer_updated(self, size: int) -> None:
        self._heard_at_s = self._loop.time()
        self._replies.received(size)
        self._take_received()

    def eof_received(self) -> None:
        middle = "" if self._replies.is_between else " in the middle of a reply"
        self.abort(f"it closed the connection{middle}")

    def connection_lost(self, error: Exception | None) -> None:
        if self._end is None:
            self._take_rest()
            self.abort(reason(error) if error else "it closed the connection")
        if not self.closed.done():
            self.closed.set_result(None)

    # -- replies ---------------------------------------------------------------------------------

    @property
    def _is_held(self) -> bool:
        """Was a reply of a stream received and not taken?"""
        return bool(self._due) and self._due[0][0].is_stream and self._due[0][1].done()

    def _take_received(self) -> None:
        """Give all complete replies to their commands, and one to a stream."""
        try:
            while self._end is None and not self._is_held:
                reply = self._replies.take()
                if reply is None:
                    break
                self._take(reply)
        except NotLogd as error:
            self.abort(str(error), not_logd(self.address, str(error), error.speaks))
        except OSError as error:
            self.abort(reason(error))
        else:
            self._pause_or_resume()
            self._watch()

    def _pause_or_resume(self) -> None:
        """Pause when more than the reply that is held has arrived."""
        is_full = self._is_held and not self._replies.is_between
        if is_full != self._is_paused and self._end is None and self._transport is not None:
            self._is_paused = is_full
            if is_full:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def _take(self, reply: ReceivedReply | LogdError) -> None:
        if not self._due:
            if isinstance(reply, ReceivedReply) or self._unasked is not None:
                raise NotLogd("it sent a reply without a command")
            self._unasked = reply
            return
        command, future = self._due[0]
        try:
            answer = command.answer(reply) if isinstance(reply, ReceivedReply) else reply
        except LogdError as error:
            answer = error
        if not command.is_stream or isinstance(answer, LogdError):
            self._due.popleft()
        if isinstance(answer, LogdError):
            if isinstance(answer, Unauthorized):
                self._fail_all(answer)
            if not future.done():
                future.set_exception(answer)
            if answer.closes:
                self.abort(f"it closed the connection ({answer})")
        elif not future.done():
            future.set_result(answer)

    def _fail_all(self, refusal: Unauthorized) -> None:
        """All commands after it fail with this error, which says more than a lost connection."""
        due, self._due = self._due, deque()
        for _, future in due:
            if not future.done():
                future.set_exception(refusal)
        if not due:
            self._unasked = refusal

    def _take_rest(self) -> None:
        """Read what is left in a socket after the loop has failed to write to it.

        What the server sent before it closed the connection explains it better.
        """
        assert self._transport is not None
        there = self._transport.get_extra_info("socket")
        if self._transport.get_extra_info("sslcontext") is not None:
            return  # these bytes are encrypted
        try:
            with socket.socket(fileno=os.dup(there.fileno())) as rest:
                rest.setblocking(False)
                while self._end is None and (size := rest.recv_into(self._replies.room())):
                    self.buffer_updated(size)
        except OSError:
            pass  # nothing more, or the socket is closed

    # -- timeout ---------------------------------------------------------------------------------

    def _watch(self) -> None:
        """While a reply is due, call `_look` when its time is over."""
        if self._due and self._timeout_s is not None and not self._is_held:
            at_s = self._heard_at_s + self._limit_s(self._timeout_s)
            if self._timer is None or at_s < self._fires_at_s:
                self._look_at(at_s)

    def _look_at(self, at_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._fires_at_s = at_s
        self._timer = self._loop.call_at(at_s, self._look)

    def _look(self) -> None:
        self._timer = None
        if not self._due or self._timeout_s is None or self._transport is None or self._is_held:
            return
        now_s, unsent = self._loop.time(), self._transport.get_write_buffer_size()
        if unsent < self._unsent_bytes:
            self._heard_at_s = now_s  # it accepts what is sent
        self._unsent_bytes = unsent
        at_s = self._heard_at_s + self._limit_s(self._timeout_s)
        if at_s > now_s:
            self._is_late = False
            self._look_at(at_s)
        elif not self._is_late:
            self._is_late = True
            self._look_at(now_s + _GRACE_S)
        else:
            self.abort(reason(_SILENCE))

    def _limit_s(self, timeout_s: float) -> float:
        return timeout_s + self._due[0][0].wait_ms / 1000
