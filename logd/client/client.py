"""The blocking client: one connection, and each command of the protocol as a method.

Always: replies are taken in the order of the requests, and `in_flight` says how many are still due;
a connection that got out of step is closed, never used again. A command that is refused raises its
`LogdError`; a connection that cannot be had or breaks raises `ConnectionLost`.

One thread at a time. Plain sockets, so that it can be imported anywhere, a Spark worker included:
nothing of asyncio, Typer or the storage.
"""

from __future__ import annotations

import select
import socket
from collections import deque
from collections.abc import Iterable
from typing import Any, Self, TypeVar

from logd.client import credentials
from logd.errors import LogdError
from logd.wire import commands
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
from logd.wire.commands import Batches, Command, CursorInfo, PartitionInfo, Pushed, TopicInfo
from logd.wire.replies import NotLogd, ReceivedReply, Replies
from logd.wire.requests import Push, Read, Where
from logd.wire.text import counted

T = TypeVar("T")


class Client:
    """One connection to a daemon: the first of several addresses that answers. `close` ends it."""

    def __init__(self, target: Target = DEFAULT_ADDRESS, *, timeout_s: float | None = 10.0) -> None:
        self.timeout_s = timeout_s
        self._due: deque[Command[Any]] = deque()
        self._replies = Replies()
        self._has_answered = False
        self._socket: socket.socket | None = None
        # The answer to a token, where one was sent, comes before all others.
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
        """From another thread: whoever waits for a reply is told that the connection is lost."""
        connection = self._socket
        if connection is not None:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # it is closed already

    def detach(self) -> socket.socket | None:
        """Hand the socket over to somebody else. No reply may be due."""
        connection, self._socket = self._socket, None
        self._due.clear()
        return connection

    @property
    def in_flight(self) -> int:
        return len(self._due)

    # -- commands -------------------------------------------------------------------------------

    def push(self, topic: str, messages: Iterable[bytes], *, compressed: bool = False) -> Pushed:
        """Store these messages as one batch: all of them, or none."""
        return self.push_batch(commands.batch_of(topic, messages, compressed=compressed))

    def push_batch(self, push: Push) -> Pushed:
        return self.run(commands.push(push))

    def read(
        self,
        topic: str,
        where: Where = 0,
        messages: int = 1000,
        *,
        max_bytes: int | None = None,
        wait_ms: int = 0,
    ) -> Batches:
        """Whole batches from `where` on that cover so many messages, or fewer; at least one."""
        return self.run(commands.read(Read(topic, where, messages, max_bytes, wait_ms)))

    def tail(self, topic: str, messages: int) -> Batches:
        """The newest messages, in whole batches."""
        return self.run(commands.tail(topic, messages))

    def stats(self, topic: str | None = None) -> dict[str, str]:
        """What the daemon counts, overall or for one topic."""
        return self.run(commands.stats(topic))

    def topics(self, glob: str = "*") -> list[TopicInfo]:
        return self.run(commands.topics(glob))

    def partitions(self, topic: str) -> list[PartitionInfo]:
        return self.run(commands.partitions(topic))

    def cursor(self, topic: str, name: str) -> CursorInfo:
        """Where a named cursor stands; NotFound where nobody has committed it."""
        return self.run(commands.cursor(topic, name))

    def commit(self, topic: str, name: str, offset: int) -> CursorInfo:
        """Move a named cursor: everything before `offset` is done."""
        return self.run(commands.commit(topic, name, offset))

    def config(self) -> dict[str, str]:
        """The settings in force."""
        return self.run(commands.CONFIG)

    def help(self) -> str:
        return self.run(commands.HELP)

    def ping(self) -> None:
        self.run(commands.PING)

    def run(self, command: Command[T]) -> T:
        """Send one command and take its reply."""
        if self.in_flight:
            raise RuntimeError(
                f"{counted(self.in_flight, 'reply', 'replies')} still due on this Client"
            )
        try:
            self.send(command)
        except ConnectionLost:
            # Sent to a closed connection: what the daemon said before it closed explains it.
            if self._socket is None:
                raise
        answer: T = self.receive()
        return answer

    # -- pipelining: send several, then take their replies in the same order -----------------------

    def send(self, command: Command[Any]) -> None:
        """Send one command without waiting for its reply.

        Where that fails, replies to earlier commands can still be received: what the daemon said
        before it hung up is the better explanation.
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
            self.close()  # interrupted between two bytes of a command
            raise

    def receive(self) -> Any:
        """What the oldest command that was sent is answered with; raises what an ERR line says."""
        connection = self._connected()
        command = self._due.popleft()
        if command.wait_ms and self.timeout_s is not None:
            connection.settimeout(self.timeout_s + command.wait_ms / 1000)
        try:
            reply = self._reply(connection)
            if isinstance(reply, ReceivedReply):
                return command.answer(reply)
        except BaseException as error:
            if isinstance(error, LogdError):
                raise
            self.close()  # in the middle of a reply: the next one could not be told from its rest
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
        """Has something of a reply come in, so that `receive` will not wait for its start?"""
        if not self._replies.is_between:
            return True
        connection = self._connected()
        held_back = getattr(connection, "pending", None)  # of TLS
        if held_back is not None and held_back():
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
        # What a daemon with TLS does.
        return f" before it answered (if it uses TLS, write {TLS}{self.address})"

    def _connected(self) -> socket.socket:
        if self._socket is None:
            raise ConnectionLost(f"the connection to {self.address} is closed; make a new Client")
        return self._socket


def _connect(target: Target, timeout_s: float | None) -> tuple[tuple[socket.socket, bool], str]:
    """The first of the addresses that answers; else what was wrong with the last."""
    for address in addresses(target):
        try:
            return credentials.connect(address, target, timeout_s), address
        except (OSError, UnicodeError) as error:
            failure = nobody_at(address, error)
    raise failure
