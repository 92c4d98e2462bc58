# cython: language_level=3, annotation_typing=False
"""The fast path of single pushes: one small message per request, from clients that wait each time.

Most programs log like this, and no batch shares the cost. So no request, reply slot or reply object
is made for such a push: the connection passes the message to the topic, which calls it back with
the offset. All single pushes of one turn of the event loop are one push to the topic.

This file is plain Python. If there is a compiler, Cython compiles it with the types in
single_push.pxd: it then does the same in half the time. Imports neither asyncio nor sockets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from logd.batch import JOIN_BYTES
from logd.errors import LogdError
from logd.storage.single_read import SingleReads
from logd.storage.write_group import CheckedBatch
from logd.wire.requests import Pushes, one_push

try:
    from logd._native import answer
except ImportError:  # installed without a compiler

    def answer(sockets: list[int], offset: int, /) -> list[tuple[int, int]]:
        """Send each socket its offset, which increases by one per socket; -1 is left out. Returns
        the sockets that did not accept the whole reply, by index, with the bytes they accepted.
        This version sends nothing."""
        return [(i, 0) for i, socket in enumerate(sockets) if socket >= 0]


_MAX_PREFIX_BYTES = 140  # a verb and a topic
_MAX_ROUTES = 64


class SinglePushes:
    """A pending push that consists of single pushes of several connections: at most one batch."""

    __slots__ = ("clients", "content", "messages", "offset", "waiting")

    def __init__(
        self, topic: str, bodies: list[bytes], waiting: list[SinglePushConnection]
    ) -> None:
        self.content: Pushes | CheckedBatch = Pushes(topic, [b"".join(bodies)], [len(bodies)])
        self.waiting = waiting
        self.clients = len(waiting)
        self.offset = self.messages = 0

    def stored(self) -> None:
        offset = first = self.offset
        sockets = []
        for connection in self.waiting:
            sockets.append(connection.single_stored(offset))
            offset += 1
        for i, sent in answer(sockets, first):
            self.waiting[i].finish_single_reply(first + i, sent)

    def refused(self, error: LogdError) -> None:
        for connection in self.waiting:
            connection.single_refused(error)


class Singles:
    """The single pushes to one topic that are not written yet. Calls `call` at every `call_at`."""

    def __init__(self, topic: str, call: Callable[[], object]) -> None:
        self._topic, self._call = topic, call
        self._bodies: list[bytes] = []
        self._waiting: list[SinglePushConnection] = []
        self._size = 0
        self.call_at = 1
        self.is_open = True  # False: the topic refuses pushes and needs to see each of them

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, body: bytes, connection: SinglePushConnection) -> None:
        self._bodies.append(body)
        self._waiting.append(connection)
        self._size += len(body)
        if len(self._bodies) == self.call_at:
            self._call()

    def take_one(self) -> tuple[bytes, SinglePushConnection]:
        """The push, if there is exactly one."""
        self._size = 0
        return self._bodies.pop(), self._waiting.pop()

    def take(self) -> list[SinglePushes]:
        """All of them, as pending pushes of at most one batch each."""
        bodies, waiting, size = self._bodies, self._waiting, self._size
        self._bodies, self._waiting, self._size, self.call_at = [], [], 0, 1
        if size <= JOIN_BYTES:
            return [SinglePushes(self._topic, bodies, waiting)] if bodies else []
        most = max(1, JOIN_BYTES // max(map(len, bodies)))
        return [
            SinglePushes(self._topic, bodies[at : at + most], waiting[at : at + most])
            for at in range(0, len(bodies), most)
        ]


class SinglePushConnection:
    """The compiled base class of a connection.

    It holds the state that decides whether a single push or a small read may pass: it may if
    nothing before it is unanswered. The subclass maintains that state and handles all other input.
    """

    def __init__(self) -> None:
        self.route_prefix, self.route_max_bytes = b"", 0  # of the last single push
        self.route: Singles | None = None  # to its topic; None: parse everything
        self.routes: dict[bytes, Singles] = {}  # by prefix, of recent single pushes
        self.reads: SingleReads | None = None  # small reads of the topic that was read last
        self.socket_fd = -1  # for short replies that bypass the transport; -1: not possible
        self.write: Callable[[bytes], object] = _nothing
        self.unwritten_bytes: Callable[[], int] = _nothing  # in the transport's buffer
        self.queue: deque[Any] = deque()  # requests that have not started
        self.slots: deque[Any] = deque()  # unanswered pushes, in order
        self.is_held = False  # by a command that must be answered before the next one starts
        self.has_single = False  # a single push is unanswered
        self.single_slot: Any = None  # its reply slot, if another request followed it
        self.is_write_paused = False
        self.is_read_paused = False
        self.is_ending = False  # an error closes the connection once its predecessors are answered
        self.is_closing = False
        self.is_active = True  # since the last check of timeouts

    def data_received(self, data: bytes) -> None:
        """Called by the event loop. Anything but a single push or a small read goes to `feed`."""
        if not self.take_single(data) and not self.take_read(data):
            self.feed(data)

    def take_single(self, data: bytes) -> bool:
        """Pass `data` to its topic if it is one single push and nothing before it is unanswered."""
        if (
            self.has_single or self.slots or self.is_held or self.queue
            or self.is_write_paused or self.is_ending or self.is_closing
        ):  # fmt: skip
            return False
        singles = self.route
        if singles is None:
            return False
        body = one_push(data, self.route_prefix, self.route_max_bytes)
        if body is None:
            prefix = data[: data.find(b" ", 5, _MAX_PREFIX_BYTES) + 1]
            singles = self.routes.get(prefix)
            if singles is None:
                return False
            body = one_push(data, prefix, self.route_max_bytes)
            if body is None:
                return False
            self.route_prefix, self.route = prefix, singles
        if not singles.is_open:
            return False
        self.is_active = self.has_single = True
        singles.add(body, self)
        return True

    def take_read(self, data: bytes) -> bool:
        """Answer `data` if it is one small read and nothing before it is unanswered or unsent."""
        if (
            self.reads is None or self.has_single or self.slots or self.is_held or self.queue
            or self.is_ending or self.is_closing or self.unwritten_bytes()
        ):  # fmt: skip
            return False
        rest = self.reads.answer(data, self.socket_fd)
        if rest is None:
            return False
        self.is_active = True
        if rest:
            self.write(rest)
        return True

    def add_route(self, prefix: bytes, max_bytes: int, singles: Singles) -> None:
        """From now on, single pushes that start with `prefix` go to this topic."""
        if len(self.routes) == _MAX_ROUTES:
            self.routes.clear()
        self.routes[prefix] = self.route = singles
        self.route_prefix, self.route_max_bytes = prefix, max_bytes

    def remove_routes(self) -> None:
        self.route = self.reads = None
        self.routes.clear()

    def single_stored(self, offset: int) -> int:
        """The socket to reply on before anything else is sent; -1: no reply, or it was sent."""
        slot = self.single_slot
        self.has_single = False
        if slot is not None:
            self.single_slot = None
            slot.offset = offset
            slot.stored()
        elif not self.is_closing:
            if self.socket_fd >= 0 and not self.is_read_paused and not self.unwritten_bytes():
                return self.socket_fd
            self.finish_single_reply(offset, 0)
            if self.is_read_paused:
                self.advance()
        return -1

    def single_refused(self, error: LogdError) -> None:
        self.reserve_single_slot()
        slot, self.single_slot, self.has_single = self.single_slot, None, False
        slot.refused(error)

    def reserve_single_slot(self) -> None:
        """Give an unanswered single push a reply slot, so that other requests can follow it."""
        if self.has_single and self.single_slot is None:
            self.single_slot = self.make_single_slot()

    # -- the subclass ---------------------------------------------------------------------------

    def feed(self, data: bytes | memoryview) -> None:
        """Any other input."""
        raise NotImplementedError

    def make_single_slot(self) -> Any:
        """A slot for a push of one message, appended to `slots`."""
        raise NotImplementedError

    def finish_single_reply(self, offset: int, sent: int) -> None:
        """Write the reply, except for the bytes that the socket has accepted already."""
        raise NotImplementedError

    def advance(self) -> None:
        """Start requests that had to wait."""
        raise NotImplementedError


def answer_one(connection: SinglePushConnection, offset: int) -> None:
    """Reply to a single push that was written by itself."""
    for _, sent in answer([connection.single_stored(offset)], offset):
        connection.finish_single_reply(offset, sent)


def _nothing(*_: bytes) -> int:
    """There is no transport yet."""
    return 0
