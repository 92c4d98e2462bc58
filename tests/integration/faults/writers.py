"""Who pushes, and who reads along: threads, each with a connection of its own.

A writer has several pushes in flight and remembers of each what became of it. One with ids sends
again what it has no answer for; the others never do. Every message says who sent it and as which
number, so whatever is read can be told apart from everything else that was ever sent.
"""

from __future__ import annotations

import random
import socket
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from logd import Client
from logd.batch import body_sum
from logd.errors import Internal, IoError, NotFound, ShuttingDown
from logd.wire.addresses import ConnectionLost, parse_address
from tests.support.daemon import HANG_S, batches
from tests.support.daemon import push as push_bytes

LINE, PLAIN, SUM, ID = "line", "plain", "sum", "id"  # how a writer pushes
_LARGE_BYTES = 5000  # more than lies between two entries of an index


@dataclass(slots=True)
class Sent:
    """One push: its messages, and what became of it."""

    number: int  # of its writer, from 1
    connection: int  # of its writer, from 1: the last one it was sent on
    messages: list[bytes]
    offset: int = -1  # once an OK or a READ told it
    is_answered: bool = False
    refused: str = ""
    is_durable: bool = False  # on disk for good, in whatever mode


class Writer:
    def __init__(self, name: str, topic: str, kind: str, rng: random.Random, window: int) -> None:
        self.name, self.topic, self.kind = name, topic, kind
        self.sent: list[Sent] = []
        self.problems: list[str] = []
        self.stored = self.refusals = 0  # how many answers of either kind
        self._random = rng
        self._window = window
        self._connections = 0
        self._again: deque[Sent] = deque()
        self._in_flight: deque[Sent] = deque()
        self._has_stumbled = False  # something in flight was refused

    def write(self, address: str, stop: threading.Event, told: Callable[[], None]) -> None:
        """Push until told to stop, or until the connection breaks. Runs on a thread of its own."""
        self._connections += 1
        self._in_flight.clear()
        self._queue_again()
        try:
            with socket.create_connection(parse_address(address), HANG_S) as line:
                replies = line.makefile("rb")
                while not stop.is_set() or self._in_flight:
                    self._send(line, stop)
                    reply = replies.readline()
                    if not reply.endswith(b"\r\n"):
                        return
                    self._answered(self._in_flight.popleft(), reply)
                    told()
        except TimeoutError:
            self.problems.append(f"{self.name}: no answer for {HANG_S} s")
        except OSError:
            pass  # the daemon is gone, which is what these tests are about

    def _queue_again(self) -> None:
        """With ids, all that has no answer is sent again, in order."""
        if self.kind == ID:
            self._again = deque(push for push in self.sent if not push.is_answered)
        self._has_stumbled = False

    def _send(self, line: socket.socket, stop: threading.Event) -> None:
        if self._has_stumbled:
            if self._in_flight:
                return  # what follows a refused number is refused too: wait, then begin with that
            self._queue_again()
        data = []
        while len(self._in_flight) < self._window and not stop.is_set():
            push = self._again.popleft() if self._again else self._new()
            push.connection = self._connections
            self._in_flight.append(push)
            data.append(self._encoded(push))
        line.sendall(b"".join(data))

    def _new(self) -> Sent:
        number = len(self.sent) + 1
        count = 1 if self.kind == LINE else self._random.choice((1, 1, 1, 2, 5))
        sizes = [self._random.randrange(200) for _ in range(count)]
        if self._random.random() < 0.02:
            sizes[0] = _LARGE_BYTES
        messages = [
            f"{self.name}/{number}/{i} ".encode() + self._random.randbytes(size // 2).hex().encode()
            for i, size in enumerate(sizes)
        ]
        self.sent.append(Sent(number, self._connections, messages))
        return self.sent[-1]

    def _encoded(self, push: Sent) -> bytes:
        body = b"".join([message + b"\n" for message in push.messages])
        if self.kind == LINE:
            return f"PUSH {self.topic}\r\n".encode() + body
        options = {
            PLAIN: "",
            SUM: f"sum={body_sum(body)}",
            ID: f"id={self.name}:{push.number}",
        }
        return push_bytes(self.topic, body, options[self.kind])

    def _answered(self, push: Sent, reply: bytes) -> None:
        word, *rest = reply.split()
        if word == b"OK":
            offset, count = map(int, rest)
            if push.offset not in (-1, offset) or count != len(push.messages):
                self.problems.append(f"{self.name}/{push.number}: {reply!r}, was {push.offset}")
            push.offset, push.is_answered = offset, True
            self.stored += 1
            return
        self.refusals += 1
        code = rest[0].decode()
        if self.kind != ID:
            push.refused = code
            return
        if code == "conflict" or (code == "out-of-order" and not self._has_stumbled):
            self.problems.append(f"{self.name}/{push.number}: {reply!r}")
        self._has_stumbled = True


class Follower:
    """A reader that remembers all it was shown of one topic."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.shown: dict[int, bytes] = {}

    def follow(self, address: str, stop: threading.Event) -> None:
        """Read along until told to stop, or until nothing can be read any more."""
        at = max(self.shown, default=-1) + 1
        try:
            with Client(address, timeout_s=HANG_S) as client:
                while not stop.is_set():
                    try:
                        got = client.read(self.topic, at, 1000, wait_ms=100)
                    except (NotFound, Internal):  # not there yet; or not cached, and to be retried
                        continue
                    at = self._note(bytes(got.data), at)
        except (ConnectionLost, IoError, ShuttingDown):
            pass

    def _note(self, data: bytes, at: int) -> int:
        for batch in batches(data):
            for i, message in enumerate(batch.messages):
                self.shown[batch.header.offset + i] = message
            at = batch.header.next
        return at
