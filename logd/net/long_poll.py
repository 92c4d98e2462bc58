"""A READ that waits for messages: until there are some, or its time is up.

Followers ask for the next message as soon as they have one, and hardly ever wait in vain. So each
door has one `Waiting` that it uses again and again, with a timer that stays where it is: when it
rings too early it is set anew.
"""

from __future__ import annotations

from logd.service import SMALL_REPLY_BYTES, Requester, Service
from logd.storage.scheduler import Timer
from logd.topic import Topic
from logd.wire.requests import Read


class LongPoll:
    __slots__ = (
        "_call", "_door", "_offset", "_read", "_rings_s", "_service", "_timer", "_topic",
        "_until_s",
    )  # fmt: skip

    def __init__(self, service: Service, door: Requester) -> None:
        self._service, self._door = service, door
        self._topic: Topic | None = None
        self._timer: Timer | None = None
        self._rings_s = self._until_s = 0.0
        self._call = self._wake

    @property
    def is_on(self) -> bool:
        return self._topic is not None

    @property
    def read(self) -> Read | None:
        """What waits."""
        return self._read if self.is_on else None

    def begin(self, topic: Topic, offset: int, read: Read) -> None:
        """Answer this when `topic`, which ends at `offset`, has more."""
        self._topic, self._offset, self._read = topic, offset, read
        now_s, wait_s = self._service.scheduler.monotonic_s(), read.wait_ms / 1000
        self._until_s = now_s + wait_s
        if self._timer is None or self._until_s < self._rings_s:
            self._ring_in(wait_s)
        topic.waiting_readers.add(self, self._call)

    def end(self) -> None:
        """Nobody is there to be answered any more."""
        if self._topic is not None:
            self._topic.waiting_readers.remove(self)
            self._topic = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wake(self) -> None:
        """The topic has more, or is closed; it has let go of this one already."""
        topic, self._topic = self._topic, None
        assert topic is not None
        fresh = topic.waiting_readers.newest
        if (
            fresh is None
            or fresh.offset != self._offset
            or fresh.messages > self._read.messages
            or fresh.size > min(self._service.max_bytes(self._read), SMALL_REPLY_BYTES)
        ):
            self._answer()
        else:  # just what was asked for, and it need not be read from the file
            self._service.count_read(fresh.size)  # before what stands behind it can ask for that
            self._door.reply(self._service.fresh_reply(fresh))

    def _ring_in(self, wait_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._rings_s = self._until_s
        self._timer = self._service.scheduler.later(wait_s, self._ring)

    def _ring(self) -> None:
        self._timer = None
        left_s = self._until_s - self._service.scheduler.monotonic_s()
        if self._topic is None:
            return
        if left_s > 0:
            self._ring_in(left_s)
        else:
            self._topic.waiting_readers.remove(self)
            self._topic = None
            self._answer()

    def _answer(self) -> None:
        self._service.read(self._read._replace(where=self._offset, wait_ms=0), self._door)
