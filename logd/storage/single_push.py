# cython: language_level=3, annotation_typing=False
"""The way of single messages: plain pushes of one small message from clients that wait each time.

That is how most programs log, and there is no batch in it to share the work. So nothing is made for
such a push, no request, no slot, no reply object: its connection hands the message to the topic and
is called back with the offset. To the topic all that came in one turn is one push.

This file is plain Python. Where there is a compiler it is also compiled, by Cython, with the types
that express.pxd adds; then it is twice as fast and does the same. Imports no asyncio, no sockets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from logd.batch import JOIN_BYTES
from logd.errors import LogdError
from logd.storage.write_group import CheckedBatch
from logd.wire.requests import Pushes, one_push

try:
    from logd._native import answer
except ImportError:  # no compiler where this was installed

    def answer(sockets: list[int], offset: int, /) -> list[tuple[int, int]]:
        """Tell each of these sockets its offset, counting up, unless it is -1. Which of them could
        not take all of that now, and how much of it they took: here, none take anything."""
        return [(i, 0) for i, socket in enumerate(sockets) if socket >= 0]


_MAX_PREFIX_BYTES = 140  # a verb and a topic
_MAX_WAYS = 64


class SinglePushes:
    """A pending push that stands for many: a batch's worth of them."""

    __slots__ = ("clients", "content", "messages", "offset", "waiting")

    def __init__(self, topic: str, bodies: list[bytes], waiting: list[Express]) -> None:
        self.content: Pushes | CheckedBatch = Pushes(topic, [b"".join(bodies)], [len(bodies)])
        self.waiting = waiting
        self.clients = len(waiting)
        self.offset = self.messages = 0

    def stored(self) -> None:
        offset = first = self.offset
        sockets = []
        for who in self.waiting:
            sockets.append(who.single_stored(offset))
            offset += 1
        for i, sent in answer(sockets, first):
            self.waiting[i].single_unsent(first + i, sent)

    def refused(self, error: LogdError) -> None:
        for who in self.waiting:
            who.single_refused(error)


class Singles:
    """What has come in for one topic and was not taken yet. It calls when there are `call_at`."""

    def __init__(self, topic: str, call: Callable[[], object]) -> None:
        self._topic, self._call = topic, call
        self._bodies: list[bytes] = []
        self._waiting: list[Express] = []
        self._size = 0
        self.call_at = 1
        self.is_open = True  # else the topic wants to refuse each push itself

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, body: bytes, who: Express) -> None:
        self._bodies.append(body)
        self._waiting.append(who)
        self._size += len(body)
        if len(self._bodies) == self.call_at:
            self._call()

    def take_one(self) -> tuple[bytes, Express]:
        """The only one there is."""
        self._size = 0
        return self._bodies.pop(), self._waiting.pop()

    def take(self) -> list[SinglePushes]:
        """All of them, as pushes of one batch at most."""
        bodies, waiting, size = self._bodies, self._waiting, self._size
        self._bodies, self._waiting, self._size, self.call_at = [], [], 0, 1
        if size <= JOIN_BYTES:
            return [SinglePushes(self._topic, bodies, waiting)] if bodies else []
        most = max(1, JOIN_BYTES // max(map(len, bodies)))
        return [
            SinglePushes(self._topic, bodies[at : at + most], waiting[at : at + most])
            for at in range(0, len(bodies), most)
        ]


class Express:
    """The part of a connection that single messages meet. What they wait for is said by flags."""

    def __init__(self) -> None:
        self._again_prefix, self._again_most = b"", 0  # how a push may begin, how large it may be
        self._again_singles: Singles | None = None  # of the topic that it goes to; None: parse all
        self._ways: dict[bytes, Singles] = {}  # the same of some of those that came before
        self._socket = -1  # for short answers, past the transport; -1 if that cannot be
        self._write: Callable[[bytes], object] = _nowhere
        self._unwritten: Callable[[], int] = _nothing  # bytes that the transport still holds
        self._queue: deque[Any] = deque()  # requests that are not started yet
        self._slots: deque[Any] = deque()  # pushes under way, in order
        self._held = False  # by a command that must be answered before the next starts
        self._single_is_sent = False  # one message is under way without a slot
        self._single_slot: Any = None  # its slot, once something came behind it
        self._write_is_paused = False
        self._read_is_paused = False
        self._ending = False  # a refusal closes the connection once all before it is answered
        self._closing = False
        self._is_active = True  # since the last sweep

    def data_received(self, data: bytes) -> None:
        """What the loop calls. Anything but a single message goes to `feed`."""
        if not self.take_single(data):
            self.feed(data)

    def feed(self, data: bytes) -> None:
        raise NotImplementedError

    def take_single(self, data: bytes) -> bool:
        """Take a single message to its topic, if it is one and nothing is under way before it."""
        if (
            self._single_is_sent or self._slots or self._held or self._queue
            or self._write_is_paused or self._ending or self._closing
        ):  # fmt: skip
            return False
        singles = self._again_singles
        if singles is None:
            return False
        body = one_push(data, self._again_prefix, self._again_most)
        if body is None:
            prefix = data[: data.find(b" ", 5, _MAX_PREFIX_BYTES) + 1]
            singles = self._ways.get(prefix)
            if singles is None:
                return False
            body = one_push(data, prefix, self._again_most)
            if body is None:
                return False
            self._again_prefix, self._again_singles = prefix, singles
        if not singles.is_open:
            return False
        self._is_active = self._single_is_sent = True
        singles.add(body, self)
        return True

    def show_way(self, prefix: bytes, most: int, singles: Singles) -> None:
        """Single messages that begin like this are for this topic, from now on."""
        if len(self._ways) == _MAX_WAYS:
            self._ways.clear()
        self._ways[prefix] = self._again_singles = singles
        self._again_prefix, self._again_most = prefix, most

    def single_stored(self, offset: int) -> int:
        """The socket to answer on, next of all; -1 where that is done or not wanted any more."""
        slot = self._single_slot
        self._single_is_sent = False
        if slot is not None:
            self._single_slot = None
            slot.offset = offset
            slot.stored()
        elif not self._closing:
            if self._socket >= 0 and not self._read_is_paused and not self._unwritten():
                return self._socket
            self.single_unsent(offset, 0)
            if self._read_is_paused:
                self._advance()
        return -1

    def single_unsent(self, offset: int, sent: int) -> None:
        """The socket did not take the answer, or not all of it: the transport will see to it."""
        self._write((b"OK %d 1\r\n" % offset)[sent:])

    def single_refused(self, error: LogdError) -> None:
        self._settle_single()
        slot, self._single_slot, self._single_is_sent = self._single_slot, None, False
        slot.refused(error)

    def _settle_single(self) -> None:
        """Give a single message that is under way a slot, so that others can queue behind it."""
        if self._single_is_sent and self._single_slot is None:
            self._single_slot = self._slot_for_single()

    def _slot_for_single(self) -> Any:
        raise NotImplementedError

    def _advance(self) -> None:
        raise NotImplementedError


def answer_one(who: Express, offset: int) -> None:
    """A single message was stored here, by itself."""
    for _, sent in answer([who.single_stored(offset)], offset):
        who.single_unsent(offset, sent)


def _nothing() -> int:
    return 0


def _nowhere(data: bytes) -> None:
    """Before there is a transport, nothing is written."""
