"""The blocking client: one connection, with each command of the protocol as a method.

The methods are in `client_commands`, which is generated from its asyncio source; this is the
connection, which is not: it blocks on a plain socket and has no tasks to serve at the same time.

Invariants: replies are taken in the order of the commands, and `in_flight` is the number that are
due; a connection on which a reply was not read to its end is closed and never used again. An ERR
reply raises its `LogdError`; a connection that is lost or cannot be made raises `ConnectionLost`.

One thread at a time. Imports neither asyncio nor Typer nor the storage: Spark workers import it.
"""

from __future__ import annotations

import select
import socket
from collections import deque
from typing import Any, Self, TypeVar

from logd.client import credentials
from logd.client.client_commands import ClientCommands
from logd.errors import LogdError
from logd.wire.addresses import (
    DEFAULT_ADDRESS,
    TLS,
    ConnectionLost,
    Target,
    addresses,
    is_tls,
    lost,
    nobody_at,
    not_logd,
    reason,
)
from logd.wire.commands import Command
from logd.wire.replies import NotLogd, ReceivedReply, Replies
from logd.wire.text import counted

T = TypeVar("T")


class Client(ClientCommands):
    """One connection to a server: to the first of the addresses that answers. `close` ends it."""

    def __init__(self, target: Target = DEFAULT_ADDRESS, *, timeout_s: float | None = 10.0) -> None:
        self.timeout_s = timeout_s
        self._due: deque[Command[Any]] = deque()
        self._replies = Replies()
        self._has_answered = False
        self._socket: socket.socket | None = None
        # The reply to a token, if one was sent, comes before all others.
        (self._socket, self._awaits_welcome), self.address = _connect(target, timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self.detach()

    def interrupt(self) -> None:
        """From another thread: a call that waits for a reply raises ConnectionLost."""
        connection = self._socket
        if connection is not None:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # it is already closed

    def detach(self) -> socket.socket | None:
        """Return the socket and forget it. No reply may be due."""
        connection, self._socket = self._socket, None
        self._due.clear()
        return connection

    @property
    def in_flight(self) -> int:
        return len(self._due)

    def run(self, command: Command[T]) -> T:
        """Send one command and return its result."""
        if self.in_flight:
            raise RuntimeError(
                f"{counted(self.in_flight, 'reply', 'replies')} still due on this Client"
            )
        try:
            self.send(command)
        except ConnectionLost:
            # The connection is closed: what the server sent before that explains it better.
            if self._socket is None:
                raise
        result: T = self.receive()
        return result

    # -- pipelining: send several commands, then receive their replies in the same order -----------

    def send(self, command: Command[Any]) -> None:
        """Send one command without waiting for its reply.

        If that fails, replies to earlier commands can still be received: what the server sent
        before it closed the connection explains it better.
        """
        connection = self._connected()
        line, body = command.line, command.body
        self._due.append(command)
        try:
            sent = connection.sendmsg((line, body))
            if sent < len(line):
                connection.sendall(memoryview(line)[sent:])
                sent = len(line)
            if sent < len(line) + len(body):
                connection.sendall(memoryview(body)[sent - len(line) :])
        except OSError as error:
            raise lost(self.address, reason(error)) from error
        except BaseException:
            self.close()  # interrupted in the middle of a command
            raise

    def receive(self) -> Any:
        """The result of the oldest command that was sent; raises the LogdError of an ERR reply.

        A stream is due until it has raised: each call returns its next reply.
        """
        connection = self._connected()
        command = self._due.popleft()
        if command.wait_ms and self.timeout_s is not None:
            connection.settimeout(self.timeout_s + command.wait_ms / 1000)
        try:
            reply = self._reply(connection)
            if isinstance(reply, ReceivedReply):
                answer = command.answer(reply)
                if command.is_stream:
                    self._due.appendleft(command)  # until it ends
                return answer
        except BaseException as error:
            if isinstance(error, LogdError):
                raise
            self.close()  # the rest of this reply would be taken for the next one
            if isinstance(error, NotLogd):
                raise not_logd(self.address, str(error), error.speaks) from error
            if isinstance(error, OSError):
                raise lost(self.address, reason(error)) from error
            raise
        finally:
            if command.wait_ms and self._socket is not None:
                connection.settimeout(self.timeout_s)
        if reply.closes:
            self.close()
        raise reply

    def readable(self) -> bool:
        """Has part of a reply arrived, so that `receive` does not wait for its start?"""
        if not self._replies.is_between:
            return True
        connection = self._connected()
        decrypted = getattr(connection, "pending", None)  # bytes that TLS has read from the socket
        if decrypted is not None and decrypted():
            return True
        poll = select.poll()
        poll.register(connection, select.POLLIN)
        return bool(poll.poll(0))

    def _reply(self, connection: socket.socket) -> ReceivedReply | LogdError:
        if self._awaits_welcome:
            self._awaits_welcome = False
            if isinstance(refusal := self._reply(connection), LogdError):
                return refusal
        while (reply := self._replies.take()) is None:
            with self._replies.room() as room:
                size = connection.recv_into(room)
            if not size:
                raise OSError(f"it closed the connection{self._when()}")
            self._replies.received(size)
            self._has_answered = True
        return reply

    def _when(self) -> str:
        if self._has_answered or is_tls(self.address):
            return "" if self._replies.is_between else " in the middle of a reply"
        # A server with TLS does this.
        return f" before it answered (if it uses TLS, write {TLS}{self.address})"

    def _connected(self) -> socket.socket:
        if self._socket is None:
            raise ConnectionLost(f"the connection to {self.address} is closed; make a new Client")
        return self._socket


def _connect(target: Target, timeout_s: float | None) -> tuple[tuple[socket.socket, bool], str]:
    """The first of the addresses that answers; raises the error of the last if none does."""
    for address in addresses(target):
        try:
            return credentials.connect(address, target, timeout_s), address
        except (OSError, UnicodeError) as error:
            failure = nobody_at(address, error)
    raise failure
