"""The blocking client: one connection, and each command of the protocol as a method.

Always: replies are taken in the order of the requests, and `in_flight` says how many are still due;
a connection that got out of step is closed, never used again. What a reply claims is believed up to
`MAX_REPLY_BYTES`. A command that is refused raises its `LogdError`; a connection that cannot be had
or breaks raises `ConnectionLost`.

One thread at a time. Plain sockets, so that it can be imported anywhere, a Spark worker included:
nothing of asyncio, Typer or the storage.
"""

from __future__ import annotations

import re
import select
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, Self

from logd.batch import body_sum, compress, encode_body
from logd.errors import BadRequest, Internal, LogdError
from logd.replies import Reply, parse_reply
from logd.requests import MAX_WAIT_MS, Push, Read, Where, push_line, read_line, topic_name, where

DEFAULT_ADDRESS = "127.0.0.1:1774"
DEFAULT_PORT = 1774
MAX_REPLY_BYTES = 1 << 30
MAX_REPLY_LINE_BYTES = 4096
_RECEIVE_BYTES = 8192  # for reply lines; what of a body comes with them is copied once more

_ADDRESS = re.compile(r"(?:\[([^\[\]\s]+)\]|([^:\[\]\s]+))(?::([0-9]{1,5}))?")
_GLOB = re.compile(r"[!-~]+")


class ConnectionLost(ConnectionError):
    """No connection, or no more. The text names the address and says what to try."""


class Pushed(NamedTuple):
    """Where a batch landed: the offset of its first message, and how many it has."""

    offset: int
    messages: int


class Batches(NamedTuple):
    """Whole batches as they are on disk. `offset`, the resolved start, may lie inside the first."""

    offset: int
    messages: int
    data: bytearray


class TopicInfo(NamedTuple):
    topic: str
    first: int
    next: int
    bytes: int
    partitions: int


class PartitionInfo(NamedTuple):
    first: int
    next: int
    bytes: int
    min_time_ms: int
    max_time_ms: int


def parse_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port`, `[::1]:port` or a host alone; ValueError for anything else."""
    match = _ADDRESS.fullmatch(address)
    port = int(match[3] or DEFAULT_PORT) if match else 0
    if match is None or not 0 < port < 65536:
        raise ValueError(f"{address!r} is not an address; write host:port, or [::1]:1774 for IPv6")
    return match[1] or match[2], port


def checked_topic(topic: str) -> str:
    """The name, if it is one: a line end in it would be a second command."""
    return topic_name(topic.encode("ascii", "backslashreplace"))


def checked_where(at: Where) -> Where:
    """The place, also where it is given as text: "first", "next", "@<unix ms>" or an offset."""
    return where(at.encode("ascii", "backslashreplace")) if isinstance(at, str) else at


def seal(topic: str, body: bytes, enc: str, *, compressed: bool = False) -> Push:
    """The push that carries this body, with the sum that protects it end to end."""
    if compressed:
        body, enc = compress(body, enc)
    return Push(topic, body, enc, sum=body_sum(body))


class Client:
    """One connection to a daemon. A context manager; `close` ends it."""

    def __init__(self, address: str = DEFAULT_ADDRESS, *, timeout_s: float | None = 10.0) -> None:
        self.address = address
        self.timeout_s = timeout_s
        self.in_flight = 0
        self._received, self._at = b"", 0  # what came in, and how much of it is used up
        self._socket: socket.socket | None = None
        try:
            self._socket = socket.create_connection(parse_address(address), timeout_s)
        except (OSError, UnicodeError) as error:
            raise ConnectionLost(
                f"no logd answers at {address} ({_reason(error)}); check the address,"
                " or start one there: logd --data-dir DIR --host ADDRESS"
            ) from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket, self.in_flight = None, 0

    # -- commands -------------------------------------------------------------------------------

    def push(self, topic: str, messages: Iterable[bytes], *, compressed: bool = False) -> Pushed:
        """Store these messages as one batch: all of them, or none."""
        batch = list(messages)
        if not batch:
            raise BadRequest("a batch holds at least one message")
        return self.push_batch(seal(topic, *encode_body(batch), compressed=compressed))

    def push_batch(self, push: Push) -> Pushed:
        with self._asking():
            self.send_push(push)
        return self.receive_pushed()

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
        wait_ms = min(wait_ms, MAX_WAIT_MS)
        with self._asking():
            self.send_read(Read(topic, where, messages, max_bytes, wait_ms))
        return self.receive_batches(wait_ms)

    def tail(self, topic: str, messages: int) -> Batches:
        """The newest messages, in whole batches."""
        with self._asking():
            self.send_tail(topic, messages)
        return self.receive_batches()

    def stats(self, topic: str | None = None) -> dict[str, str]:
        """What the daemon counts, overall or for one topic."""
        return _named(self._text("STATS" if topic is None else f"STATS {checked_topic(topic)}"))

    def topics(self, glob: str = "*") -> list[TopicInfo]:
        if not _GLOB.fullmatch(glob):
            raise BadRequest("a glob is one word of topic characters and * ? [ ] !")
        lines = _lines(self._text(f"TOPICS {glob}"))
        return [TopicInfo(words[0], *_numbers(words[1:], 4)) for words in lines]

    def partitions(self, topic: str) -> list[PartitionInfo]:
        lines = _lines(self._text(f"PARTITIONS {checked_topic(topic)}"))
        return [PartitionInfo(*_numbers(words, 5)) for words in lines]

    def config(self) -> dict[str, str]:
        """The settings in force."""
        return _named(self._text("CONFIG"))

    def help(self) -> str:
        return self._text("HELP")

    def ping(self) -> None:
        with self._asking():
            self.send(b"PING\r\n")
        self._expect("OK")

    # -- pipelining: send several, then take their replies in the same order -----------------------

    def send_push(self, push: Push) -> None:
        self.send(push_line(push._replace(topic=checked_topic(push.topic))), push.body)

    def send_read(self, read: Read) -> None:
        topic, at = checked_topic(read.topic), checked_where(read.where)
        self.send(read_line(read._replace(topic=topic, where=at)))

    def send_tail(self, topic: str, messages: int) -> None:
        self.send(f"TAIL {checked_topic(topic)} {messages}\r\n".encode())

    def receive_pushed(self) -> Pushed:
        reply, _ = self._expect("OK", numbers=2)
        return Pushed(*reply.numbers)

    def receive_batches(self, wait_ms: int = 0) -> Batches:
        reply, data = self._expect("BATCHES", numbers=3, wait_ms=wait_ms)
        return Batches(reply.numbers[0], reply.numbers[1], data)

    def send(self, line: bytes, body: bytes | bytearray = b"") -> None:
        """Send one command without waiting for its reply.

        Where that fails, replies to earlier commands can still be received: what the daemon said
        before it hung up is the better explanation.
        """
        connection = self._connected()
        self.in_flight += 1
        try:
            sent = connection.sendmsg((line, body))
            if sent < len(line):
                connection.sendall(memoryview(line)[sent:])
                sent = len(line)
            if sent < len(line) + len(body):
                connection.sendall(memoryview(body)[sent - len(line) :])
        except OSError as error:
            raise self._lost(_reason(error)) from error
        except BaseException:
            self.close()  # interrupted between two bytes of a command
            raise

    def receive(self, wait_ms: int = 0) -> tuple[Reply, bytearray]:
        """The next reply and the bytes behind its first line; raises what an ERR line says."""
        connection = self._connected()
        if wait_ms and self.timeout_s is not None:
            connection.settimeout(self.timeout_s + wait_ms / 1000)
        try:
            return self._reply(connection)
        except LogdError as error:
            if error.closes:
                self.close()
            raise
        except BaseException as error:
            self.close()  # in the middle of a reply: the next one could not be told from its rest
            if isinstance(error, OSError) and not isinstance(error, ConnectionLost):
                raise self._lost(_reason(error)) from error
            raise
        finally:
            if wait_ms and self._socket is not None:
                connection.settimeout(self.timeout_s)

    def readable(self) -> bool:
        """Has a reply come in, so that `receive` will not wait for its start?"""
        if self._received.find(b"\n", self._at) >= 0:
            return True
        poll = select.poll()
        poll.register(self._connected(), select.POLLIN)
        return bool(poll.poll(0))

    # -- below the commands -----------------------------------------------------------------------

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """For a command whose reply is taken at once: nothing else may be due before it."""
        if self.in_flight:
            raise RuntimeError(f"{self.in_flight} replies are still due on this Client")
        try:
            yield
        except ConnectionLost:
            # Sent to a closed connection: what the daemon said before it closed explains it.
            if self._socket is None:
                raise

    def _text(self, line: str) -> str:
        with self._asking():
            self.send(f"{line}\r\n".encode())
        _, text = self._expect("TEXT", numbers=1)
        return text.decode("utf-8", "replace")

    def _expect(self, word: str, numbers: int = 0, wait_ms: int = 0) -> tuple[Reply, bytearray]:
        reply, body = self.receive(wait_ms)
        if reply.word != word or len(reply.numbers) != numbers:
            self.close()
            raise self._lost(f"it answered {reply.word} where {word} was due")
        return reply, body

    def _reply(self, connection: socket.socket) -> tuple[Reply, bytearray]:
        line = self._line(connection)
        self.in_flight -= 1
        try:
            reply = parse_reply(line)
        except BadRequest as error:
            if line.startswith(b"ERR "):
                raise
            raise self._lost(f"it is no logd: {error.text}") from error
        if reply.body_bytes > MAX_REPLY_BYTES:
            raise self._lost(f"it announced a reply of {reply.body_bytes} bytes")
        return reply, self._body(connection, reply.body_bytes)

    def _line(self, connection: socket.socket) -> bytes:
        while (end := self._received.find(b"\n", self._at) + 1) == 0:
            rest = self._received[self._at :]
            if len(rest) > MAX_REPLY_LINE_BYTES:
                raise self._lost("it is no logd: its reply has no end of line")
            data = connection.recv(_RECEIVE_BYTES)
            if not data:
                raise self._lost("it closed the connection")
            self._received, self._at = rest + data, 0
        line = self._received[self._at : end]
        self._at = end
        return line

    def _body(self, connection: socket.socket, size: int) -> bytearray:
        body = bytearray(size)
        here = self._received[self._at : self._at + size]
        self._at += len(here)
        with memoryview(body) as view:
            view[: len(here)] = here
            got = len(here)
            while got < size:
                count = connection.recv_into(view[got:])
                if not count:
                    raise self._lost("it closed the connection in the middle of a reply")
                got += count
        return body

    def _connected(self) -> socket.socket:
        if self._socket is None:
            raise ConnectionLost(f"the connection to {self.address} is closed; make a new Client")
        return self._socket

    def _lost(self, reason: str) -> ConnectionLost:
        return ConnectionLost(
            f"lost the connection to {self.address}: {reason}; see the daemon's log, and try again"
        )


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _lines(text: str) -> list[list[str]]:
    return [line.split(" ") for line in text.replace("\r", "").split("\n") if line]


def _numbers(words: list[str], count: int) -> list[int]:
    try:
        numbers = [int(word) for word in words]
    except ValueError:
        numbers = []
    if len(numbers) != count:
        raise Internal(f"the daemon answered a table line that has no {count} numbers: {words}")
    return numbers


def _named(text: str) -> dict[str, str]:
    pairs = (line.partition(": ") for line in text.replace("\r", "").split("\n") if line)
    return {name: value for name, _, value in pairs}
